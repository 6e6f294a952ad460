"""The models to measure: the fixture, a wider or shorter form of it, or any other model."""

from __future__ import annotations

import json
import shutil
import time
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm import load
from mlx_lm.draft.costs import LearnedCosts
from mlx_lm.draft.model import block_costs
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache

from conformance import FIXTURE
from conformance.bench.speed import widened

DTYPES = {"bf16": mx.bfloat16, "fp16": mx.float16, "fp32": mx.float32}
# The fixture itself processes a longer prompt of the widened one. Its cache is the same bit for bit.
LONG_PROMPT = 1024
CHUNK = 512

Cache = list[Any]


@dataclass
class Subject:
    """A model to measure, with the labels that every row of it carries."""

    name: str
    weights: str
    model: Any
    tokenizer: Any
    # A faster model that fills the cache with the same values.
    twin: Any = None
    drafts: dict[str, Any] = field(default_factory=dict)
    fixture: bool = True
    margin: float | str = 0.0
    _last: tuple[list[int], Cache] | None = None

    @property
    def eos(self) -> set[int]:
        return set(self.tokenizer.eos_token_ids)

    @property
    def costs(self) -> LearnedCosts:
        """The costs of blocks that the planner uses. All runs share them, also if they wrap the model."""
        return block_costs(self.model)

    @property
    def kv(self) -> str:
        kinds = dict.fromkeys(type(c).__name__ for c in make_prompt_cache(self.model))
        return f"{'+'.join(kinds)}, {self.weights if self.fixture else 'as the weights'}"

    def labels(self) -> dict[str, Any]:
        return {"model": self.name, "weights": self.weights, "kv": self.kv, "batch": 1}

    def encode(self, messages: list[dict[str, str]], answered: bool = False) -> list[int]:
        ids: list[int] = self.tokenizer.apply_chat_template(messages, add_generation_prompt=not answered)
        return ids

    def prefilled(self, tokens: list[int]) -> tuple[Cache, float | None]:
        """A cache that holds the tokens, and the seconds to fill it. None if a faster way filled it."""
        last, cache = self._last or ([], [])
        shared = next((i for i, (a, b) in enumerate(zip(last, tokens, strict=False)) if a != b), None)
        shared = min(len(last), len(tokens)) if shared is None else shared
        long = len(tokens) > LONG_PROMPT
        if long and shared > len(tokens) // 2 and can_trim_prompt_cache(cache):
            cache = copied(cache)
            trim_prompt_cache(cache, len(last) - shared)
        else:
            cache, shared = make_prompt_cache(self.model), 0
        in_short = long and (shared > 0 or self.twin is not None)
        start = time.perf_counter()
        fill(self.twin if long and self.twin is not None else self.model, tokens[shared:], cache)
        seconds = time.perf_counter() - start
        if long:
            self._last = tokens, copied(cache)
        return cache, None if in_short else seconds


def fill(model: Any, tokens: list[int], cache: Cache) -> None:
    for start in range(0, len(tokens), CHUNK):
        model(mx.array(tokens[start : start + CHUNK])[None], cache=cache)
        mx.eval([c.state for c in cache])


def copied(cache: Cache) -> Cache:
    """A copy of a cache, so that a run does not change the cache of the next one."""
    copy = deepcopy(cache)
    mx.eval([c.state for c in copy])
    return copy


def narrow(weights: str) -> tuple[Any, Any]:
    model, tokenizer = load(str(FIXTURE))
    model.set_dtype(DTYPES[weights])
    mx.eval(model.parameters())
    return model, tokenizer


def truncated(weights: str, layers: int = 2) -> Any:
    """The first layers of the fixture: a draft model that is often wrong."""
    model, _ = narrow(weights)
    model.model.layers = model.model.layers[:layers]
    model.args.num_hidden_layers = layers
    return model


def shipped(weights: str = "bf16") -> Subject:
    model, tokenizer = narrow(weights)
    return Subject("fixture", weights, model, tokenizer, drafts={"first 2 layers": truncated(weights)})


def larger(hidden: int, weights: str = "bf16") -> Subject:
    """The fixture with a wider MLP. It computes the same bit for bit, so the fixture can draft for it."""
    model, tokenizer = widened(hidden, DTYPES[weights])
    twin, _ = narrow(weights)
    count = sum(value.size for _, value in tree_flatten(model.parameters())) / 1e6
    drafts = {"the fixture": twin, "first 2 layers": truncated(weights)}
    return Subject(f"widened fixture, {count:.0f} M", weights, model, tokenizer, twin, drafts)


def other(name: str, draft: str | None, margin: float | str) -> Subject:
    """Any model that mlx-lm loads."""
    model, tokenizer = load(name)
    drafts = {} if draft is None else {Path(draft).name: load(draft)[0]}
    return Subject(name, weights_of(model), model, tokenizer, drafts=drafts, fixture=False, margin=margin)


def weights_of(model: Any) -> str:
    """How the weights are stored: the bits of quantized weights, or else the most frequent type."""
    bits = {part.bits for _, part in model.named_modules() if hasattr(part, "bits")}
    if bits:
        return "+".join(f"{n}-bit" for n in sorted(bits))
    types = [value.dtype for _, value in tree_flatten(model.parameters())]
    names = {dtype: name for name, dtype in DTYPES.items()}
    return names.get(max(set(types), key=types.count), "mixed")


def save(model: Any, folder: Path) -> Path:
    """Write a form of the fixture as a model directory that other libraries can load too."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(FIXTURE / name, folder)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "pt"})
    config = json.loads((FIXTURE / "config.json").read_text())
    config["intermediate_size"] = model.model.layers[0].mlp.gate_proj.weight.shape[0]
    config["num_hidden_layers"] = len(model.model.layers)
    dtype = model.model.norm.weight.dtype
    config["torch_dtype"] = str(dtype).removeprefix("mlx.core.")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder
