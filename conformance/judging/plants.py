"""Trees with one fault each, and with other names than the release has: what a judgement has to find.

A fault is a piece of one file that is replaced. The contract is the one that has to be named, and no other may be.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

CACHE, GENERATE, DRAFT = "mlx_lm/models/cache.py", "mlx_lm/generate.py", "mlx_lm/draft/"


@dataclass(frozen=True)
class Plant:
    name: str
    contract: str
    file: str
    right: str
    wrong: str


TRIM_OF_KV = """\
    def trim(self, n):
        n = min(self.offset, n)
        self.offset -= n
        return n

    def to_quantized(self, group_size: int = 64, bits: int = 4) -> QuantizedKVCache:
        quant_cache"""
TRIM_OF_RING = "        self.offset -= n\n        self._idx -= n\n"
ROWS = """\
        if n > 0 and self.keys.shape[2] > self.max_size:
            self.keys = self.keys[..., : self._idx, :]
            self.values = self.values[..., : self._idx, :]

    def to_quantized"""
WINDOW = (
    "            window_size = window_size or self.max_size\n            offset = min(self.max_size - 1, self.offset)\n"
)
STATE = "class ArraysCache(_BaseCache):\n"
ALIAS = STATE + "    def {name}:\n        return {alias}\n\n"
SNAP = "        self._armed = set(range(len(self.cache)))\n        return super().snap()\n"
PREFIX = "return copy.deepcopy(cache_entry.prompt_cache), tokens[short_length:]"
LATER = PREFIX.replace("short_length:", "short_length + 1 :")
PASSED = "        draft=draft,\n        kv_bits=args.kv_bits,\n"
OPTIONS = "        draft_model=draft_model,\n        num_draft_tokens=args.num_draft_tokens,\n"
END = "        finally:\n            _rewind_cache(num_draft, n)\n"
CLOSE = "            trim_prompt_cache(self.cache, 0)\n        mx.eval([c.state for c in self.cache])\n"
SHORT = "        if can_trim_prompt_cache(self.cache, 1):\n            trim_prompt_cache(self.cache, 1)\n"

EVERYWHERE = [
    Plant("a window that is one too wide", "C4 blocks", CACHE, WINDOW, WINDOW.replace("_size\n", "_size + 1\n", 1)),
    Plant("a server that goes on a token too late", "C3 server prefixes", CACHE, PREFIX, LATER),
]
STOCK = [
    Plant("a trim that returns 0", "C2 trim", CACHE, TRIM_OF_KV, TRIM_OF_KV.replace("return n", "return 0")),
    Plant("rows kept after a trim", "C2 trim", CACHE, TRIM_OF_RING, "        self.offset -= n\n"),
    Plant(
        "a recurrent state aliased",
        "C1 snapshot",
        CACHE,
        STATE,
        ALIAS.format(name="__deepcopy__(self, _)", alias="copy.copy(self)"),
    ),
    Plant(
        "a token short at a stop",
        "C3 exits",
        GENERATE,
        END,
        END + "            trim_prompt_cache(model_cache, 1)\n",
    ),
    Plant("a flag dropped", "C6 options", GENERATE, OPTIONS, OPTIONS.replace("=draft_model", "=None")),
    *EVERYWHERE,
]
SERIES = [
    Plant(
        "a trim that returns 0",
        "C2 trim",
        CACHE,
        "    return trimmed[0] if trimmed else 0\n",
        "    return 0\n",
    ),
    Plant("rows kept after a trim", "C2 trim", CACHE, ROWS, "\n    def to_quantized"),
    Plant("a recurrent state aliased", "C1 snapshot", CACHE, SNAP, SNAP.replace("super().snap()", "(self.state, [])")),
    Plant("a token short at a stop", "C3 exits", f"{DRAFT}verify.py", CLOSE, CLOSE + SHORT),
    Plant(
        "processors shown a short history",
        "C5 processors",
        f"{DRAFT}loop.py",
        "history, unseen = prompt, ",
        "history, unseen = prompt[-1:], ",
    ),
    Plant("a flag dropped", "C6 options", GENERATE, PASSED, PASSED.replace("=draft,", "=None,")),
    *EVERYWHERE,
]
PLANTS = {"stock": STOCK, "series": SERIES}

# What was found in the published experiments, planted behind the interface of one: its adapter, the part of the
# contracts that is asked, and the fault.
RING = "        self._idx -= n\n        if n > 0 and self.keys"
ROWS_OF_STATE = SNAP.replace("super().snap()", "_copy_handles(((self.cache, None, None), []))")
HISTORY = "history = mx.concat([history, y])"
PUBLISHED = [
    (
        "draft_type",
        "caches",
        Plant("a sliding window out of place", "C2 trim", CACHE, RING, RING.replace("-= n", "-= 0")),
    ),
    (
        "draft_type",
        "commands",
        Plant("a flag dropped", "C6 options", GENERATE, PASSED, PASSED.replace("=draft,", "=None,")),
    ),
    (
        "prompt_lookup",
        "caches",
        Plant("metadata of a recurrent cache lost", "C1 snapshot", CACHE, SNAP, ROWS_OF_STATE),
    ),
    (
        "prompt_lookup",
        "decoding",
        Plant("a token short at an early close", "C3 exits", f"{DRAFT}verify.py", CLOSE, CLOSE + SHORT),
    ),
    (
        "backend",
        "decoding",
        Plant("history fed twice", "C5 processors", f"{DRAFT}loop.py", HISTORY, HISTORY.replace("y]", "y, y]")),
    ),
]
# What the tree of an interface has beside the loop of the series.
BACKEND = """

from typing import Literal


def prompt_lookup_generate_step(
    prompt, model, *, backend: Literal["suffix", "ngram-simple"] = "suffix", num_draft_tokens=3, **options
):
    how = dict(draft=backend, num_draft_tokens=num_draft_tokens, disable_adaptive_gate=True)
    yield from guessing_steps(prompt, model, **how, **options)
"""

# What a tree calls by another name, so that nothing but its adapter knows.
NAMES = {
    "can_trim_prompt_cache": "may_drop",
    "trim_prompt_cache": "drop_tokens",
    "snapshot_prompt_cache": "mark_caches",
    "restore_prompt_cache": "rewind_caches",
    "speculative_generate_step": "guessing_steps",
    "draft_strategy": "guesser",
    "draft_model": "helper",
    "draft-model": "helper",
    "draft-type": "guess-with",
    "draft_type": "guess_with",
}
# The interface of an experiment is all that its adapter knows.
OF_THE_LOOP = {
    name: NAMES[name] for name in ("speculative_generate_step", "draft_strategy", "draft_model", "draft-model")
}
INTERFACES = {
    "draft_type": OF_THE_LOOP | {"prompt_lookup_num_tokens": "looked_up", "prompt-lookup-num-tokens": "looked-up"},
    "prompt_lookup": OF_THE_LOOP,
    "backend": OF_THE_LOOP,
}


def plant(source: Path, into: Path, fault: Plant | None = None, names: dict[str, str] = NAMES) -> Path:
    """Copy a tree, with a fault or without one, and give it the other names."""
    shutil.copytree(source / "mlx_lm", into / "mlx_lm", ignore=shutil.ignore_patterns("__pycache__"))
    if fault is not None:
        path = into / fault.file
        text = path.read_text()
        assert text.count(fault.right) == 1, (
            f"{fault.name}: {fault.right!r} is in {fault.file} {text.count(fault.right)} times"
        )
        path.write_text(text.replace(fault.right, fault.wrong))
    renamed = re.compile(rf"\b({'|'.join(names)})\b")
    for path in (into / "mlx_lm").rglob("*.py"):
        text = path.read_text()
        if (made := renamed.sub(lambda found: names[found[1]], text)) != text:
            path.write_text(made)
    return into


def published(source: Path, into: Path, interface: str, fault: Plant | None = None) -> Path:
    """A tree that drafts through the interface of an experiment, and whose package of the series has another name."""
    plant(source, into, fault, INTERFACES[interface])
    package = into / "mlx_lm"
    (package / "draft").rename(package / "guessing")
    for path in package.rglob("*.py"):
        text = path.read_text()
        if (made := re.sub(r"(?<=from )(mlx_lm|\.+)(\.?)draft(?=[. ])", r"\1\2guessing", text)) != text:
            path.write_text(made)
    if interface == "backend":
        with (package / "generate.py").open("a") as file:
            file.write(BACKEND)
    return into
