"""Trees with one fault each, and with other names than the release has: what a judgement has to find.

A fault replaces a piece of one file, the first one after an anchor. The test is the one that has to see it.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

CACHE, GENERATE, SERVER = "models/cache.py", "generate.py", "server.py"


@dataclass(frozen=True)
class Plant:
    name: str
    # The folder of its file and the id in it.
    test: str
    file: str
    anchor: str
    right: str
    wrong: str

    @property
    def nodeid(self) -> str:
        folder, _, test = self.test.partition("::")
        return f"conformance/{folder}/test_through_adapter.py::{test}"


def of(folder: str, file: str, *faults: tuple[str, str, str, str, str]) -> list[Plant]:
    return [Plant(name, f"{folder}::{test}", file, anchor, right, wrong) for name, test, anchor, right, wrong in faults]


KV, RING, BATCH, STATE = "class KVCache", "class RotatingKVCache", "class BatchKVCache", "class ArraysCache"
QUANTIZED, CHUNKED, STEP = "class QuantizedKVCache", "class ChunkedKVCache", "class GenerationBatch"
C1, C4, C10 = "contracts/c1_snapshot", "contracts/c4_parity", "contracts/c10_rows_are_alone"
DEEPCOPY = "\n    def __deepcopy__(self, _):\n        return copy.copy(self)\n"
CONTEXT = "context = self._token_context[e].update_and_fetch(inputs[e : e + 1])"
KEPT = "[self.{0}[idx] for idx in keep]"

STOCK = [
    *of(
        C1,
        CACHE,
        ("a trim that returns 0", "test_trim[KVCache]", KV, "-= n\n        return n", "-= n\n        return 0"),
        ("an offset that is not lowered", "test_trim[KVCache]", KV, "self.offset -= n", "pass"),
        ("a quantized trim one too far", "test_trim[QuantizedKVCache]", QUANTIZED, "offset -= n", "offset -= n + 1"),
        ("a quantized offset not lowered", "test_trim[QuantizedKVCache]", QUANTIZED, "self.offset -= n", "pass"),
        ("a chunk that is not trimmed", "test_trim[ChunkedKVCache]", CHUNKED, "self.offset -= n", "pass"),
        ("a ring that keeps its place", "test_trim[RotatingKVCache]", RING, "self._idx -= n", "pass"),
        ("a ring that keeps its offset", "test_trim[RotatingKVCache]", RING, "self.offset -= n", "pass"),
        ("rows of a batch kept", "test_trim[BatchKVCache]", BATCH, "self._idx -= n", "pass"),
        ("offsets of a batch kept", "test_trim[BatchKVCache]", BATCH, "self.offset = self.offset - n", "pass"),
        ("a list that trims one too few", "test_trim[CacheList]", "class CacheList", ".trim(n)", ".trim(n - 1)"),
        ("a window one too wide", "test_blocks[RotatingKVCache]", RING, "or self.max_size\n", "or self.max_size + 1\n"),
        ("a ring one too small", "test_blocks[RotatingKVCache]", RING, "- self.max_size + 1", "- self.max_size + 2"),
        ("a chunk cut early", "test_blocks[ChunkedKVCache]", CHUNKED, "valid - self.chunk_size", "valid - 1"),
        ("a mask one too early", "test_blocks[BatchKVCache]", BATCH, "offset=self._idx,", "offset=self._idx - 1,"),
        (
            "stale padding after a filter",
            "test_filter[BatchKVCache]",
            BATCH,
            "self.left_padding[batch_indices]",
            "self.left_padding[: len(batch_indices)]",
        ),
        (
            "stale offsets after a filter",
            "test_filter[BatchKVCache]",
            BATCH,
            "self.offset[batch_indices]",
            "self.offset[: len(batch_indices)]",
        ),
        (
            "the rows of others after a filter",
            "test_filter[BatchKVCache]",
            BATCH,
            "self.keys[batch_indices]",
            "self.keys[: len(batch_indices)]",
        ),
        (
            "a recurrent state aliased",
            "test_model_snapshot[mamba]",
            STATE,
            "\n    @property",
            DEEPCOPY + "\n    @property",
        ),
    ),
    *of(
        C4,
        "models/gated_delta.py",
        ("a gate at 0.9", "test_plain[qwen3_next]", "def gated_delta", "mx.sigmoid(b)", "0.9 * mx.sigmoid(b)"),
    ),
    *of(
        "architectures",
        "models/llama.py",
        ("attention a hundredth off", "test_plain[llama]", "", "head_dim**-0.5", "1.01 * head_dim**-0.5"),
    ),
    *of(
        C4,
        GENERATE,
        (
            "a pass too many",
            "test_plain[llama]",
            "def generate_step",
            "logits = logits[:, -1, :]",
            "logits = logits[:, -1, :] + 0 * model(input_tokens[None])[:, -1, :]",
        ),
        (
            "a token of the prompt left out",
            "test_plain[llama]",
            "def generate_step",
            "processed = prompt[:n_to_process]",
            "processed = prompt[1:n_to_process]",
        ),
    ),
    *of(
        C10,
        GENERATE,
        (
            "a greedy row that skips its processors",
            "test_processors_of_one_row[llama]",
            STEP,
            "if processors:",
            "if processors and self.samplers[e] is not greedy_sampler:",
        ),
        ("the processors of row 0", "test_processors_of_one_row[llama]", STEP, "processors[e] or", "processors[0] or"),
        (
            "processors without a history",
            "test_processors_of_one_row[llama]",
            STEP,
            CONTEXT,
            "context = inputs[e : e + 1]",
        ),
        (
            "the processors of a row that left",
            "test_processors_of_one_row[llama]",
            STEP,
            KEPT.format("logits_processors"),
            "self.logits_processors[: len(keep)]",
        ),
        (
            "the limit of a row that left",
            "test_rows[llama]",
            STEP,
            KEPT.format("max_tokens"),
            "self.max_tokens[: len(keep)]",
        ),
        (
            "a row that joins counts on",
            "test_a_row_that_joins[llama]",
            STEP,
            "extend(batch._num_tokens)",
            "extend([3])",
        ),
    ),
    *of(
        C10,
        CACHE,
        (
            "padding of a row that joins",
            "test_a_row_that_joins[llama]",
            BATCH,
            "c.left_padding + left",
            "c.left_padding",
        ),
        ("padding on the right kept", "test_rows[llama]", BATCH, "self.left_padding += padding", "pass"),
        (
            "the state of a row that left",
            "test_rows[qwen3_next]",
            STATE,
            "[c[batch_indices]",
            "[c[: len(batch_indices)]",
        ),
    ),
    *of(
        "commands",
        GENERATE,
        (
            "an option that is dropped",
            "test_options[generate]",
            "def main",
            "draft_model=draft_model",
            "draft_model=None",
        ),
    ),
    *of(
        "server",
        SERVER,
        (
            "a cached prefix not shown to processors",
            "test_a_penalty_on_a_cached_prompt[fixture-plain]",
            "",
            "all_tokens=[prompt[:prompt_cache_count]]",
            "all_tokens=[[]]",
        ),
        ("every seed acting as 0", "test_seeds[fixture-plain]", "", "mx.random.seed(args.seed)", "mx.random.seed(0)"),
        ("a seed that is dropped", "test_seeds[fixture-plain]", "", "mx.random.seed(args.seed)", "pass"),
    ),
    *of(
        "server",
        CACHE,
        (
            "a prefix one too long",
            "test_prefixes[fixture-plain]",
            "",
            "tokens[short_length:]",
            "tokens[short_length + 1 :]",
        ),
        (
            "a hit of a whole prompt",
            "test_one_prompt_twice[fixture-plain]",
            "",
            "num_to_trim = len(result.longer) - prefix",
            "num_to_trim = len(result.longer) - prefix - 1",
        ),
        (
            "rows of other clients",
            "test_clients_at_once[gemma3_text-plain]",
            BATCH,
            "self.keys[batch_indices]",
            "self.keys[batch_indices[::-1]]",
        ),
    ),
]

LOOP, VERIFY, DRAFTS = "draft/loop.py", "draft/verify.py", "draft/batch.py"
CLOSE = "            trim_prompt_cache(self.cache, 0)\n        mx.eval([c.state for c in self.cache])\n"
SHORT = "        if can_trim_prompt_cache(self.cache, 1):\n            trim_prompt_cache(self.cache, 1)\n"
ARMED = "self._armed = set(range(len(self.cache)))\n        return "
EXITS, RIGHT = "test_exits[llama-{0}]", "scripted"


def of_the_series(drafter: str = RIGHT, command: str = "generate") -> list[Plant]:
    """Faults of the loop of the series, whatever drafter the tree calls it through."""
    return [
        *of(
            C1,
            CACHE,
            (
                "a trim of all that returns 0",
                "test_trim[KVCache]",
                "",
                "return trimmed[0] if trimmed else 0",
                "return 0",
            ),
            (
                "a window out of place",
                "test_trim[RotatingKVCache]",
                RING,
                "self._idx -= n\n        if n > 0",
                "self._idx -= 0\n        if n > 0",
            ),
            (
                "a state in the snapshot aliased",
                "test_model_snapshot[mamba]",
                "",
                f"{ARMED}super().snap()",
                f"{ARMED}(self.state, [])",
            ),
            (
                "padding of a recurrent cache lost",
                "test_rows_of_a_recurrent_cache",
                "",
                f"{ARMED}super().snap()",
                f"{ARMED}_copy_handles(((self.cache, None, None), []))",
            ),
        ),
        *of(C4, VERIFY, ("a token short at an exit", EXITS.format(drafter), "", CLOSE, CLOSE + SHORT)),
        *of(
            C4,
            LOOP,
            (
                "a short history",
                f"test_processors[llama-{drafter}]",
                "",
                "history, unseen = prompt, ",
                "history, unseen = prompt[-1:], ",
            ),
            (
                "history fed twice",
                f"test_processors[llama-{drafter}]",
                "",
                "history = mx.concat([history, y])",
                "history = mx.concat([history, y, y])",
            ),
        ),
        *of(
            "commands",
            GENERATE,
            (
                "a flag that is dropped",
                f"test_options[{command}]",
                "",
                "        draft=draft,\n        kv_bits=args.kv_bits,\n",
                "        draft=None,\n        kv_bits=args.kv_bits,\n",
            ),
        ),
    ]


SERIES = [
    *of_the_series(),
    *of(
        "server",
        DRAFTS,
        (
            "all rows trimmed alike",
            "test_clients_at_once[gemma3_text-drafted]",
            "",
            "trim_prompt_cache(self.prompt_cache, [n_tokens - n for n in n_kept])",
            "trim_prompt_cache(self.prompt_cache, [n_tokens - n_kept[0]] * len(n_kept))",
        ),
    ),
]
TREES = {"stock": STOCK, "series": SERIES}
# The cheapest, for a run that is not of all.
SAMPLE = {
    "an offset that is not lowered",
    "stale padding after a filter",
    "a gate at 0.9",
    "a greedy row that skips its processors",
    "a token short at an exit",
    "history fed twice",
}

# What a tree has beside the loop of the series, and calls by another name: nothing but its adapter knows.
BACKEND = """

from typing import Literal


def prompt_lookup_generate_step(
    prompt, model, *, backend: Literal["suffix", "ngram-simple"] = "suffix", num_draft_tokens=3, **options
):
    how = dict(draft=backend, num_draft_tokens=num_draft_tokens, disable_adaptive_gate=True)
    yield from guessing_steps(prompt, model, **how, **options)
"""
OF_THE_LOOP = {
    "speculative_generate_step": "guessing_steps",
    "draft_strategy": "guesser",
    "draft_model": "helper",
    "draft-model": "helper",
}
NAMES = OF_THE_LOOP | {
    "can_trim_prompt_cache": "may_drop",
    "trim_prompt_cache": "drop_tokens",
    "snapshot_prompt_cache": "mark_caches",
    "restore_prompt_cache": "rewind_caches",
    "draft-type": "guess-with",
    "draft_type": "guess_with",
}
# The interfaces of experiments, one of their drafters, and the names that they do not have.
INTERFACES = {
    "draft_type": (
        "ngram-simple",
        OF_THE_LOOP | {"prompt_lookup_num_tokens": "looked_up", "prompt-lookup-num-tokens": "looked-up"},
    ),
    "prompt_lookup": ("lookup", OF_THE_LOOP),
    "backend": ("suffix", OF_THE_LOOP),
}


def plant(source: Path, into: Path, fault: Plant | None = None, names: dict[str, str] | None = None) -> Path:
    """Copy a tree, with a fault or without one, and give it other names."""
    shutil.copytree(source / "mlx_lm", into / "mlx_lm", ignore=shutil.ignore_patterns("__pycache__"))
    if fault is not None:
        path = into / "mlx_lm" / fault.file
        before, anchor, text = path.read_text().partition(fault.anchor) if fault.anchor else ("", "", path.read_text())
        assert fault.right in text, f"{fault.name}: {fault.right!r} is not in {fault.file} after {fault.anchor!r}"
        path.write_text(before + anchor + text.replace(fault.right, fault.wrong, 1))
    renamed = re.compile(rf"\b({'|'.join(names or {'no such name': ''})})\b")
    for path in (into / "mlx_lm").rglob("*.py"):
        text = path.read_text()
        if names and (made := renamed.sub(lambda found: names[found[1]], text)) != text:
            path.write_text(made)
    return into


def published(source: Path, into: Path, interface: str, fault: Plant | None = None) -> Path:
    """A tree that drafts through the interface of an experiment, and whose package of the series has another name."""
    plant(source, into, fault, INTERFACES[interface][1])
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
