"""Decode plain and in clean replays, and keep what each run saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

# The tokens of a prompt that generate_step feeds at a time, and how many rows are compared at a time.
PREFILL, ROWS = 2048, 32
# What the caches of a model say of themselves: the offset of each, where it has one.
Offsets = tuple[int | None, ...]
# A token and the log probabilities that it was drawn from.
Step = tuple[int, mx.array]


def offsets_of(layers: Iterable[Any]) -> Offsets:
    found: list[int | None] = []
    for layer in layers:
        if hasattr(layer, "caches"):
            found += offsets_of(layer.caches)
        else:
            offset = getattr(layer, "offset", None)
            found.append(offset if isinstance(offset, int) else None)
    return tuple(found)


def gaps(a: Sequence[mx.array], b: Sequence[mx.array]) -> list[float]:
    """The largest difference in each pair of rows; infinite log probabilities are equal to themselves."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} rows and {len(b)} rows")
    found: list[float] = []
    for start in range(0, len(a), ROWS):
        x, y = (mx.stack(list(rows[start : start + ROWS])).astype(mx.float32) for rows in (a, b))
        apart = mx.where(x == y, 0.0, mx.abs(x - y))
        found += mx.where(mx.isnan(apart), mx.inf, apart).reshape(len(x), -1).max(axis=-1).tolist()
    return found


def gap(a: Sequence[mx.array], b: Sequence[mx.array]) -> float:
    """The largest of them."""
    return max(gaps(a, b))


def log_probabilities(logits: mx.array) -> mx.array:
    """As both generators work them out."""
    rows: mx.array = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return rows


def best_of(rows: Sequence[mx.array]) -> list[int]:
    """The likeliest token of each row."""
    best: list[int] = []
    for start in range(0, len(rows), ROWS):
        best += mx.argmax(mx.stack(list(rows[start : start + ROWS])), axis=-1).tolist()
    return best


@dataclass
class Block:
    """One forward pass: what was fed, and what the caches said before it."""

    inputs: mx.array
    offsets: Offsets

    @property
    def length(self) -> int:
        return int(self.inputs.size)


class Watched:
    """A model that notes each block that it is fed."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.blocks: list[Block] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        self.blocks.append(Block(inputs, offsets_of(cache)))
        logits: mx.array = self.model(inputs, cache=cache)
        return logits


@dataclass
class Run:
    """What one decode gave, and what it left."""

    tokens: list[int]
    # The log probabilities that each token was drawn from.
    rows: list[mx.array]
    # Those of a few fixed tokens that are fed to the cache afterwards.
    after: list[mx.array]
    # What the caches said by the number of tokens that they should hold, of a run that never trims; and at the end.
    offsets: dict[int, Offsets] = field(default_factory=dict)
    last_offsets: Offsets = ()
    # Of a drafted run, the block that each row is from.
    owners: list[Block] = field(default_factory=list)
    # For each draft, how many of its tokens were right, and how many there were.
    drafts: list[tuple[int, int]] = field(default_factory=list)
    stats: Any = None

    @property
    def lengths(self) -> list[int]:
        """The lengths of the blocks that the rows are from."""
        return sorted({block.length for block in self.owners})

    @property
    def split(self) -> list[int]:
        """How many rows in a row are from one block."""
        found, last = [], None
        for block in self.owners:
            if block is last:
                found[-1] += 1
            else:
                found.append(1)
            last = block
        return found


def rows_of(run: Run) -> list[mx.array]:
    return run.rows + run.after


@dataclass(frozen=True)
class Task:
    """A prompt, how long the answer may be, and what ends it."""

    prompt: tuple[int, ...]
    max_tokens: int
    eos: frozenset[int] = frozenset()

    @property
    def after(self) -> tuple[int, ...]:
        """What the next turn begins with."""
        return (self.prompt * 5)[:5]


def next_turn(model: Any, cache: list[Any], tokens: Sequence[int] = (7, 9, 11, 12, 13)) -> list[mx.array]:
    """The rows of two single tokens and a block: what a second turn on this cache would see."""
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


def plain(model: Any, task: Task) -> Run:
    watched, cache = Watched(model), make_prompt_cache(model)
    steps = generate_step(mx.array(task.prompt), watched, max_tokens=task.max_tokens, prompt_cache=cache)
    tokens, rows = until_the_end(task, steps)
    offsets, held = {}, 0
    for block in watched.blocks:
        offsets[held] = block.offsets
        held += block.length
    offsets[held] = last = offsets_of(cache)
    return Run(tokens, rows, next_turn(model, cache, task.after), offsets, last)


def in_blocks(model: Any, task: Task, tokens: Sequence[int] | None, split: Iterable[int]) -> Iterator[Any]:
    """Feed the prompt as generation does, and tokens that are known in blocks, then in single steps; never trim.

    Yields the cache and the rows so far, before and after each block. None for the tokens stops at the last one of the
    prompt.
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
        logits = model(mx.array([block]), cache=cache)[0]
        rows += list(log_probabilities(logits))
        mx.eval(rows[done:])
        done += len(block)
        yield cache, rows


def replay(model: Any, task: Task, tokens: Sequence[int], split: Iterable[int]) -> Run:
    """What a run would have seen that knew its tokens. Nothing is ever rolled back."""
    offsets, cache, rows = {}, [], []
    for cache, rows in in_blocks(model, task, tokens, split):
        offsets[len(task.prompt) - 1 + len(rows)] = last = offsets_of(cache)
    return Run(list(tokens), rows[: len(tokens)], next_turn(model, cache, task.after), offsets, last)


def state_after(model: Any, task: Task, tokens: Sequence[int] | None, split: Iterable[int]) -> list[Any]:
    """A clean cache that holds the prompt and tokens; with None, the prompt but its last token."""
    *_, (cache, _) = in_blocks(model, task, tokens, split)
    return list(cache)
