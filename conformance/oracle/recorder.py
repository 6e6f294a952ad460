"""Decode plainly and in replays without rollback, and record what each run saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from conformance.subjects.architectures import leaves

# The number of prompt tokens that generate_step feeds at a time, and of rows that are compared at a time.
PREFILL, AT_ONCE = 2048, 32
# The offset of each cache of a model, if it has one.
Offsets = tuple[int | None, ...]


def offsets_of(layers: Iterable[Any]) -> Offsets:
    found = [getattr(layer, "offset", None) for layer in leaves(layers)]
    return tuple(offset if isinstance(offset, int) else None for offset in found)


def gaps(a: Sequence[mx.array], b: Sequence[mx.array]) -> list[float]:
    """The largest difference in each pair of rows. Two infinite log probabilities are equal.

    Raises:
        ValueError: if the numbers of rows differ.
    """
    if len(a) != len(b):
        raise ValueError(f"{len(a)} rows and {len(b)} rows")
    found: list[float] = []
    for start in range(0, len(a), AT_ONCE):
        x, y = (mx.stack(list(rows[start : start + AT_ONCE])).astype(mx.float32) for rows in (a, b))
        apart = mx.where(x == y, 0.0, mx.abs(x - y))
        found += mx.where(mx.isnan(apart), mx.inf, apart).reshape(len(x), -1).max(axis=-1).tolist()
    return found


def gap(a: Sequence[mx.array], b: Sequence[mx.array]) -> float:
    """The largest difference over all pairs of rows."""
    return max(gaps(a, b))


def log_probabilities(logits: mx.array) -> mx.array:
    """The log probabilities of logits, computed as both generators do."""
    rows: mx.array = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return rows


def best_of(rows: Sequence[mx.array]) -> list[int]:
    """The likeliest token of each row."""
    best: list[int] = []
    for start in range(0, len(rows), AT_ONCE):
        best += mx.argmax(mx.stack(list(rows[start : start + AT_ONCE])), axis=-1).tolist()
    return best


@dataclass
class Block:
    """One forward pass: the tokens that were fed, and the offsets of the caches before it."""

    inputs: mx.array
    offsets: Offsets

    @property
    def length(self) -> int:
        return int(self.inputs.size)


@contextmanager
def fed(model: Any) -> Iterator[list[int]]:
    """The lengths of the blocks that a model is fed in this context."""
    lengths, kind = list[int](), type(model)
    call = kind.__call__

    def counted(self: Any, inputs: mx.array, *args: Any, **kwargs: Any) -> Any:
        lengths.append(inputs.size)
        return call(self, inputs, *args, **kwargs)

    with patch.object(kind, "__call__", counted):
        yield lengths


class Watched:
    """A model that records each block that it is fed. It can have other caches than its own."""

    def __init__(self, model: Any, make_cache: Callable[[], list[Any]] | None = None) -> None:
        self.model = model
        self.blocks: list[Block] = []
        if make_cache is not None:
            self.make_cache = make_cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        self.blocks.append(Block(inputs, offsets_of(cache)))
        logits: mx.array = self.model(inputs, cache=cache)
        return logits


@dataclass
class Recording:
    """The output of one decode, and the state it left."""

    tokens: list[int]
    # The log probabilities of each token.
    rows: list[mx.array]
    # The log probabilities of a few fixed tokens, fed to the cache afterwards.
    after: list[mx.array]
    # The offsets by the number of tokens in the cache, for a run that never trims, and the offsets at the end.
    offsets: dict[int, Offsets] = field(default_factory=dict)
    last_offsets: Offsets = ()
    # For a drafted run, the block of each row.
    owners: list[Block] = field(default_factory=list)
    stats: Any = None

    @property
    def lengths(self) -> list[int]:
        """The different lengths of the blocks of the rows."""
        return sorted({block.length for block in self.owners})

    @property
    def split(self) -> list[int]:
        """The number of consecutive rows from each block."""
        found, last = [], None
        for block in self.owners:
            if block is last:
                found[-1] += 1
            else:
                found.append(1)
            last = block
        return found


def rows_of(run: Recording) -> list[mx.array]:
    return run.rows + run.after


@dataclass(frozen=True)
class Task:
    """A prompt, the longest answer, and the end tokens."""

    prompt: tuple[int, ...]
    max_tokens: int
    eos: frozenset[int] = frozenset()

    @property
    def after(self) -> tuple[int, ...]:
        """The first tokens of the next turn."""
        return (self.prompt * 5)[:5]


def next_turn(model: Any, cache: list[Any], tokens: Sequence[int] = (7, 9, 11, 12, 13)) -> list[mx.array]:
    """The rows of two single tokens and a block, as a second turn on this cache."""
    fed = (tokens[:1], tokens[1:2], tokens[2:])
    rows = [log_probabilities(model(mx.array([list(x)]), cache=cache)[0, -1]) for x in fed]
    mx.eval(rows)
    return rows


def until_the_end(task: Task, steps: Iterator[Any], note: Any = None) -> tuple[list[int], list[mx.array]]:
    tokens, rows = [], []
    for token, row, *_ in steps:
        tokens.append(int(token))
        rows.append(row)
        if note is not None:
            note()
        if token in task.eos:
            break
    steps.close()  # type: ignore[attr-defined]
    mx.eval(rows)
    return tokens, rows


def plain(model: Any, task: Task) -> Recording:
    watched, cache = Watched(model), make_prompt_cache(model)
    steps = generate_step(mx.array(task.prompt), watched, max_tokens=task.max_tokens, prompt_cache=cache)
    tokens, rows = until_the_end(task, steps)
    offsets, held = {}, 0
    for block in watched.blocks:
        offsets[held] = block.offsets
        held += block.length
    offsets[held] = last = offsets_of(cache)
    return Recording(tokens, rows, next_turn(model, cache, task.after), offsets, last)


def in_blocks(model: Any, task: Task, tokens: Sequence[int] | None, split: Iterable[int]) -> Iterator[Any]:
    """Feed the prompt as generation does, then known tokens in blocks, then the rest in single steps. Never trims.

    Before a block there is a snapshot, as before each draft: windows then keep the order of single steps.

    Yields the cache and the rows so far, before and after each block. If ``tokens`` is None, it stops before the last
    token of the prompt.
    """
    cache, prompt = make_prompt_cache(model), list(task.prompt)
    rows: list[mx.array] = []
    for start in range(0, len(prompt) - 1, PREFILL):
        model(mx.array(prompt[start : min(start + PREFILL, len(prompt) - 1)])[None], cache=cache)
        mx.eval([c.state for c in cache])
    yield cache, rows
    fed, done = [] if tokens is None else [prompt[-1], *tokens], 0
    lengths = chain(split, repeat(1))
    while done < len(fed):
        block = fed[done : done + next(lengths)]
        for layer in cache if len(block) > 1 else ():
            getattr(layer, "snap", list)()
        logits = model(mx.array([block]), cache=cache)[0]
        rows += list(log_probabilities(logits))
        mx.eval(rows[done:])
        done += len(block)
        yield cache, rows


def replay(model: Any, task: Task, tokens: Sequence[int], split: Iterable[int]) -> Recording:
    """Feed known tokens in blocks, without any rollback. Returns what such a run sees."""
    offsets, cache, rows = {}, [], []
    for cache, rows in in_blocks(model, task, tokens, split):
        offsets[len(task.prompt) - 1 + len(rows)] = last = offsets_of(cache)
    return Recording(list(tokens), rows[: len(tokens)], next_turn(model, cache, task.after), offsets, last)


def state_after(model: Any, task: Task, tokens: Sequence[int] | None, split: Iterable[int]) -> list[Any]:
    """A cache without rollbacks that holds the prompt and ``tokens``, or for None the prompt without its last token."""
    *_, (cache, _) = in_blocks(model, task, tokens, split)
    return list(cache)
