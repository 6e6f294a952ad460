"""A tiny model with random weights for every architecture that mlx-lm ships."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.switch_layers import SwitchLinear

from conformance.drafters import VOCAB

# The caches that hold every token, so that they can drop any number of them.
WHOLE = ("KVCache", "QuantizedKVCache", "ConcatenateKVCache", "BatchKVCache")
CONFIGS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())

UNRUNNABLE: dict[str, str] = {
    "bitnet": "Its linear layers are a Metal kernel and have no other implementation.",
    "muse_spark": "Its attention and its router are Metal kernels and have no other implementation.",
    "muse_spark_open": "Its attention and its router are Metal kernels and have no other implementation.",
    "olmo": "Its module ends the process without the package ai2-olmo, and with it a prompt of two tokens raises.",
    "phi3small": "It needs a vocabulary of over 100,000 tokens, and gives some of them a logit of minus infinity.",
}

# The models whose blocks are not row-identical on a CPU: docs/contracts.md says why.
ROUNDING = frozenset({"deepseek_v32", "deepseek_v41", "glm_moe_dsa"})
# Models with a cache that cannot drop the end of a block. It is restored, and accepted tokens are fed again.
RESTORED = frozenset({"deepseek_v41"})
# Models that compute wrong blocks once their window is full, also in the release.
SHORT = frozenset({"plamo3"})

# A prompt that is longer than any block of drafts, so that it is a chunk of a prompt, and the steps after it.
PROMPT, STEPS = 70, 5

# Random matrices are this much larger than those of mlx. With the usual size a layer adds little to its input, and
# greedy decoding repeats one token for ever.
SCALE = 3.0
# Of quantized layers. Experts need an argument that the oldest mlx that mlx-lm allows does not take.
GROUP = 32
UNQUANTIZED = () if "global_scale" in (mx.gather_qmm.__doc__ or "") else (SwitchLinear,)


@cache
def model_files() -> list[str]:
    """The names of the models that the installed mlx-lm has. A module without the two classes is no language model.

    The source is read, not imported: some modules end the process if a package is missing.
    """
    texts = {path.stem: path.read_text("utf-8") for path in Path(mlx_lm.models.__path__[0]).glob("*.py")}
    return sorted(name for name, text in texts.items() if all(_has(text, one) for one in ("Model", "ModelArgs")))


def _has(text: str, name: str) -> bool:
    """Whether a module has a class, of its own or imported."""
    return re.search(rf"^(class|from \S+ import( \([^)]*|.*))\s{name}\b", text, re.MULTILINE) is not None


def runnable() -> list[str]:
    """The models of the installed mlx-lm that `build` can make and a CPU can run."""
    return [name for name in model_files() if name in CONFIGS and name not in UNRUNNABLE]


def is_row_identical(name: str) -> bool:
    """Whether the blocks of a model have to be computed as single tokens are, bit for bit."""
    return bool(mx.default_device() == mx.cpu) and name not in ROUNDING


@cache
def caches_of(name: str) -> list[Any]:
    """The caches of a model, to be looked at."""
    return make_cache(outline(name))


@cache
def batched() -> list[str]:
    """The runnable models whose caches can be merged."""
    return [name for name in runnable() if all(hasattr(cache, "merge") for cache in caches_of(name))]


def leaves(caches: Iterable[Any]) -> Iterator[Any]:
    """Caches, and those in lists of caches."""
    for layer in caches:
        yield from leaves(layer.caches) if hasattr(layer, "caches") else (layer,)


@cache
def classes() -> dict[str, set[str]]:
    """The classes of the caches of each runnable model."""
    return {name: {type(layer).__name__ for layer in leaves(caches_of(name))} for name in runnable()}


def recurrent() -> list[str]:
    """The runnable models with recurrent layers."""
    return [name for name, held in classes().items() if "ArraysCache" in held]


def bounded() -> list[str]:
    """The runnable models with a layer that does not hold every token of a long prompt."""
    return [name for name, held in classes().items() if not held <= {*WHOLE}]


def _fill(value: mx.array) -> mx.array:
    """Random values for an array that mlx-lm sets to zero, and would load from a checkpoint."""
    if mx.issubdtype(value.dtype, mx.floating):
        values: mx.array = mx.random.normal(value.shape) * value.shape[-1] ** -0.5
    else:
        # Packed weights: any bits are valid.
        values = mx.random.randint(0, mx.iinfo(value.dtype).max, value.shape).astype(value.dtype)
    return values


def outline(name: str, package: str = "mlx_lm") -> Any:
    """The model with weights that are not computed: its modules and its caches are those of ``build``."""
    module = import_module(f"{package}.models.{name}")
    # Some ModelArgs change the nested dicts that they get.
    return module.Model(module.ModelArgs.from_dict(deepcopy(CONFIGS[name])))


def build(name: str, seed: int = 0, package: str = "mlx_lm") -> Any:
    """The model with random weights in float32. A seed always gives the same weights."""
    mx.random.seed(seed)
    model = outline(name, package)
    embeddings = {f"{path}.weight" for path, part in model.named_modules() if isinstance(part, nn.Embedding)}
    weights = []
    for path, value in tree_flatten(model.parameters()):
        # Routers and some norms start at zero. Then all experts or channels are the same.
        new = value if value.any().item() else _fill(value)
        if mx.issubdtype(new.dtype, mx.floating) and new.ndim > 1 and path not in embeddings:
            new = SCALE * new
        weights.append((path, new))
    model.update(tree_unflatten(weights))
    model.set_dtype(mx.float32)
    model.eval()
    mx.eval(model.parameters())
    return model


def quantize(model: Any, bits: int = 4) -> Any:
    """Quantize all layers that can be, of those that the model does not leave out."""
    wanted = getattr(model, "quant_predicate", None) or (lambda *_: True)

    def is_quantized(path: str, layer: Any) -> bool:
        # afm7 has a layer that does not know the modes of mlx.
        can = hasattr(layer, "to_quantized") and "mode" in signature(layer.to_quantized).parameters
        can &= not isinstance(layer, UNQUANTIZED)
        return can and layer.weight.shape[-1] % GROUP == 0 and bool(wanted(path, layer))

    nn.quantize(model, GROUP, bits, class_predicate=is_quantized)
    return model


def make_cache(model: Any) -> list[Any]:
    """An empty prompt cache. Its length may differ from the number of layers."""
    layers: list[Any] = make_prompt_cache(model)
    return layers


def logits(name: str, package: str = "mlx_lm") -> mx.array:
    """The logits of a prompt and of the steps after it, without drafts, of shape (PROMPT + STEPS, VOCAB)."""
    model = build(name, package=package)
    caches = import_module(f"{package}.models.cache").make_prompt_cache(model)
    tokens = mx.array([[(7 * i + 3) % VOCAB for i in range(PROMPT + STEPS)]])
    blocks = [tokens[:, :PROMPT], *mx.split(tokens[:, PROMPT:], STEPS, axis=1)]
    made = mx.concatenate([model(block, cache=caches) for block in blocks], axis=1)[0].astype(mx.float32)
    mx.eval(made)
    return made
