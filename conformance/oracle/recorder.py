"""Decode plainly and in replays without rollback, and record what each run saw."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Self
from unittest.mock import patch

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from conformance.subjects.architectures import leaves

# The number of prompt tokens that generate_step feeds at a time.
PREFILL = 2048
# The offset of each cache of a model, if it has one.
Offsets = tuple[int | None, ...]


def offsets_of(layers: Iterable[Any]) -> Offsets:
    found = [getattr(layer, "offset", None) for layer in leaves(layers)]
    return tuple(offset if isinstance(offset, int) else None for offset in found)


def gaps(a: Sequence[mx.array], b: Sequence[mx.array]) -> list[float]:
    """The largest difference in each pair of rows. Two infinite log probabilities are equal."""
    pairs = ((x.astype(mx.float32), y.astype(mx.float32)) for x, y in zip(a, b, strict=True))
    apart = [mx.where(x == y, 0.0, mx.abs(x - y)) for x, y in pairs]
    return [mx.where(mx.isnan(one), mx.inf, one).max().item() for one in apart]


def gap(a: Sequence[mx.array], b: Sequence[mx.array]) -> float:
    """The largest difference over all pairs of rows."""
    return max(gaps(a, b))


def differ_at(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The first place where one is not the other."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def log_probabilities(logits: mx.array) -> mx.array:
    """The log probabilities of logits, computed as both generators do."""
    rows: mx.array = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return rows


def best_of(rows: Sequence[mx.array]) -> list[int]:
    """The likeliest token of each row."""
    return [mx.argmax(row).item() for row in rows]


@dataclass
class Block:
    """One forward pass: the tokens that were fed, and the offsets of the caches before it."""

    inputs: mx.array
    offsets: Offsets

    @property
    def length(self) -> int:
        return int(self.inputs.size)


def length_of(inputs: mx.array, *_: Any, **__: Any) -> int:
    return int(inputs.size)


def block_of(inputs: mx.array, cache: Sequence[Any] = (), **_: Any) -> Block:
    return Block(inputs, offsets_of(cache))


@contextmanager
def fed(model: Any, note: Callable[..., Any] = length_of) -> Iterator[list[Any]]:
    """What is noted of each block that a model is fed in this context: its length."""
    noted, kind = list[Any](), type(model)
    call = kind.__call__

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        noted.append(note(*args, **kwargs))
        return call(self, *args, **kwargs)

    with patch.object(kind, "__call__", called):
        yield noted


@dataclass(eq=False)
class Run:
    """A decode, a replay or a row of a batch: the cache that it begins with and leaves, and what is seen of it."""

    prompt: list[int] = field(default_factory=list)
    cache: list[Any] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    # The log probabilities of each token, and whether it is said to be drafted.
    rows: list[Any] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    # The last response, if it is one of responses, and what drafting says of itself.
    last: Any = None
    stats: Any = None
    # The lead of each token that was drawn over the second-best one, if the sampler notes it.
    margins: list[float] = field(default_factory=list)
    # The lengths of the forward passes of the model, and the one that each row is of.
    blocks: list[int] = field(default_factory=list)
    owners: list[Block] = field(default_factory=list)
    # What a processor is shown, twice for each token: before and after the other processors.
    histories: list[tuple[list[int], Any]] = field(default_factory=list)
    draws: list[int] = field(default_factory=list)
    # What is reported of the prompt.
    progress: list[tuple[int, ...]] = field(default_factory=list)
    # The state of random numbers at the end.
    random: list[Any] = field(default_factory=list)
    # What it drafted from, and its stream.
    drafts: Any = None
    stream: Any = None
    # The offsets of the caches by the number of tokens in them, and the log probabilities of a turn that followed.
    offsets: dict[int, Offsets] = field(default_factory=dict)
    after: list[mx.array] = field(default_factory=list)

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.tokens]

    @property
    def all_rows(self) -> list[mx.array]:
        return self.rows + self.after

    def take(self, steps: Iterable[Any], eos: Container[int] = ()) -> Self:
        """Steps of a loop up to an end token, or responses up to the last one."""
        for step in steps:
            self.stats = getattr(step, "draft", None) or self.stats
            reason = getattr(step, "finish_reason", None)
            if reason != "error":
                token, logprobs, *drafted = step if isinstance(step, tuple) else (step.token, step.logprobs)
                self.tokens.append(int(token))
                self.rows.append(logprobs)
                self.drafted.append(any(drafted) or getattr(step, "from_draft", False))
            if reason is not None:
                self.last = step
            if reason is not None or (eos and self.tokens[-1] in eos):
                break
        return self

    def loop(self, step: Callable[..., Any], model: Any, n: int, **options: Any) -> Self:
        """Decode up to n tokens with a step function of mlx_lm."""
        options |= {"max_tokens": n, "prompt_cache": self.cache or None}
        if self.stats is not None:
            options["stats"] = self.stats
        with fed(model) as self.blocks:
            return self.take(step(mx.array(self.prompt), model, **options))

    def leave(self, model: Any) -> Self:
        """Note what the caches are left with, which a turn then changes."""
        mx.eval(self.rows)
        self.offsets[len(self.text)] = offsets_of(self.cache)
        self.after = next_turn(model, self.cache, self.prompt)
        return self


def next_turn(model: Any, cache: list[Any], prompt: Sequence[int] = (7, 9, 11, 12, 13)) -> list[mx.array]:
    """The rows of two single tokens and a block, as a second turn on this cache that begins as a prompt."""
    tokens = [*prompt, *prompt, *prompt, *prompt, *prompt][:5]
    rows = [log_probabilities(model(mx.array([x]), cache=cache)[0, -1]) for x in (tokens[:1], tokens[1:2], tokens[2:])]
    mx.eval(rows)
    return rows


def plain(model: Any, prompt: Sequence[int], n: int, eos: Container[int] = ()) -> Run:
    run = Run([*prompt], make_prompt_cache(model))
    with fed(model, block_of) as blocks:
        steps = generate_step(mx.array(prompt), model, max_tokens=n, prompt_cache=run.cache)
        run.take(steps, eos)
        steps.close()
    held = 0
    for block in blocks:
        run.offsets[held] = block.offsets
        held += block.length
    return run.leave(model)


def in_blocks(model: Any, text: Sequence[int], n_prompt: int, split: Iterable[int]) -> Iterator[Any]:
    """Feed all but the last token of a prompt as generation does, what follows in blocks, and then in single steps.

    Never trims. Yields the cache and the rows of what follows so far, before and after each block.
    """
    cache, prompt, following = make_prompt_cache(model), text[: n_prompt - 1], text[n_prompt - 1 :]
    rows: list[mx.array] = []
    for start in range(0, len(prompt), PREFILL):
        model(mx.array([prompt[start : start + PREFILL]]), cache=cache)
        mx.eval([c.state for c in cache])
    yield cache, rows
    lengths = chain(split, repeat(1))
    while len(rows) < len(following):
        done = len(rows)
        block = following[done : done + next(lengths)]
        # As before each draft: windows then keep the order of single steps.
        for layer in cache if len(block) > 1 else ():
            getattr(layer, "snap", list)()
        rows += list(log_probabilities(model(mx.array([block]), cache=cache)[0]))
        mx.eval(rows[done:])
        yield cache, rows


def replay(model: Any, prompt: Sequence[int], tokens: Sequence[int], split: Iterable[int]) -> Run:
    """Feed known tokens in blocks, without any rollback. Returns what such a run sees."""
    run = Run([*prompt], tokens=[*tokens])
    for run.cache, run.rows in in_blocks(model, [*prompt, *tokens], len(prompt), split):
        run.offsets[len(prompt) - 1 + len(run.rows)] = offsets_of(run.cache)
    run.rows = run.rows[: len(tokens)]
    return run.leave(model)


def state_after(model: Any, text: Sequence[int], n_prompt: int, split: Iterable[int]) -> list[Any]:
    """A cache without rollbacks that holds a text, which has all tokens of the prompt but the last one at least."""
    *_, (cache, _) = in_blocks(model, text, n_prompt, split)
    return list(cache)
