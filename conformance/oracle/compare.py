"""Compare a drafted run with the plain one, and say what differs in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from operator import ge
from typing import Any, Protocol

import mlx.core as mx
import pytest
from mlx_lm.generate import maybe_quantize_kv_cache

from conformance.adapters import HEADS, WRONG, Adapters, Drafts
from conformance.drafters import AtDepth
from conformance.oracle.findings import broken, not_shown
from conformance.oracle.heads import compare_head
from conformance.oracle.recorder import Task, Watched, gap, gaps, next_turn, noises
from conformance.oracle.recorder import plain as recorded
from conformance.oracle.run import OF_A_STREAM, Case, N, Run, drafted, right_turn, second_turn
from conformance.subjects.architectures import make_cache
from conformance.subjects.decoded import Family, K, model_of, prompt_of

# Where blocks and single tokens are not equal bit for bit: more than they are apart in any tree, in float32 and models
# of two layers, and far less than a fault makes. The second is for a quantized cache.
MOST, MOST_QUANTIZED = 2e-3, 0.2
# A draft model reads what it missed in blocks, and a block is quantized only after it is read.
QUANTIZED_DRAFTER = 0.02
# Their layers are not called as layers, or give something else: a head is refused.
HEADLESS = ("deepseek_v41", "iquestloopcoder")


@cache
def near(family: Family) -> float:
    """The allowed distance of log probabilities: zero if the rows of a block equal those of single steps."""
    from mlx_lm.models.cache import KVCache

    model = model_of(family)
    sources = [Watched(model, family.caches)]
    if family.options:
        sources.append(Watched(model, lambda: [KVCache().to_quantized(32, 8) for _ in model.layers]))
    task = Task(tuple(prompt_of(21)), 16)
    measured = max(max(noises(source, task, recorded(source, task))) for source in sources)
    return most(family) if measured > 0 else 0.0


def most(family: Family) -> float:
    """More than what is read in other parts is apart, and far less than a fault makes."""
    return MOST_QUANTIZED if family.options else MOST


class Steps(Protocol):
    """Any decode."""

    tokens: list[int]
    rows: list[Any]


def within(limit: float) -> Callable[[float], bool]:
    return partial(ge, limit)


def compare_tokens(got: Steps, right: Steps, about: str, is_near: Callable[[float], bool]) -> None:
    """C4: the tokens, and the log probabilities of those that have some."""
    a, b = got.tokens, right.tokens
    if a != b:
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        broken(f"{about}tokens {a[: at + 1][-4:]} instead of {b[: at + 1][-4:]}, at token {at}")
    told = [i for i, row in enumerate(got.rows) if row is not None]
    for i, off in zip(told, gaps([got.rows[i] for i in told], [right.rows[i] for i in told]), strict=True):
        if not is_near(off):
            broken(f"{about}the log probabilities of token {i} are off by {off:.2g}")


def compare_shapes(held: list[Any], wanted: list[Any], about: str, whose: str = "") -> None:
    for i, (a, b) in enumerate(zip(held, wanted, strict=True)):
        if a != b:
            broken(f"{about}cache {i}{whose} is {said(a)} instead of {said(b)}")


def compare_caches(got: Run, right: Run, adapter: Adapters) -> None:
    """C3: the caches of the caller hold the prompt and what was yielded, and a second turn on them is right."""
    compare_shapes(shape(got.caches), shape(right.caches), f"after {len(got.tokens)} tokens, ")
    is_near = within(16 * near(got.case.family))
    turn = right_turn(right.case)
    compare_tokens(second_turn(got.case, deepcopy(got.caches), None, None), turn, "in a plain second turn, ", is_near)
    if got.drafts is not None:
        if got.drafts.name in HEADS:
            compare_head(got)
        elif got.drafts.left and adapter.is_series:
            compare_drafters_caches(got)
        again = replace(got.drafts, right=[*got.case.next_prompt, *turn.tokens], strategy=None)
        compare_tokens(second_turn(got.case, got.caches, adapter, again), turn, "in a drafted second turn, ", is_near)


def shape(layers: list[Any]) -> list[Any]:
    """The parts of caches that are equal if they hold the same tokens, in any order of rows."""
    inner = [shape(list(c.caches)) if hasattr(c, "caches") else [] for c in layers]
    return [(type(c), getattr(c, "offset", 0), i) for c, i in zip(layers, inner, strict=True)]


def said(one: Any) -> str:
    kind, offset, inner = one
    return f"{kind.__name__} of {offset} tokens{' with ' + ', '.join(map(said, inner)) if inner else ''}"


def compare_drafters_caches(got: Run) -> None:
    """The caches of a draft model hold the prompt and what was yielded too."""
    if got.drafts is None or got.case.end == "failure":
        return
    family, model = got.case.family, got.drafts.draft_model(model_of(got.case.family))
    wanted, rows = held_by_drafter(family, got.drafts.name, got.case.length, tuple(got.tokens))
    compare_shapes(shape(got.drafts.left), wanted, f"after {len(got.tokens)} tokens, ", " of the draft model")
    off = gap(next_turn(model, deepcopy(got.drafts.left)), rows)
    if off > 16 * (QUANTIZED_DRAFTER if family.options else 1e-5 if mx.default_device() == mx.cpu else MOST):
        broken(f"what follows on the cache of the draft model is off by {off:.2g}")


@cache
def held_by_drafter(
    family: Family, name: str, length: int, tokens: tuple[int, ...]
) -> tuple[list[Any], list[mx.array]]:
    """The caches of a draft model after the prompt and these tokens, fed one by one: their shape, and what follows."""
    model = Drafts(name, []).draft_model(model_of(family))
    layers = make_cache(model)
    for block in (prompt_of(length), *([token] for token in tokens)):
        model(mx.array([block]), layers)
        if family.options:
            maybe_quantize_kv_cache(layers, **family.options)
    return shape(layers), next_turn(model, layers)


def compare_seen(got: Run, right: Run, exact: bool) -> None:
    """C5: processors see the history of plain decoding, and with ``exact`` once for each token, as samplers do."""
    if not exact:
        shown = {tuple(history) for history, _ in got.histories}
        for i, (history, _) in enumerate(right.histories[: 2 * len(right.tokens)]):
            if tuple(history) not in shown:
                broken(f"at token {i // 2}, no processor is shown the {len(history)} tokens before it")
        return
    compare_calls(got, right, "histories", "draws")
    if got.random != right.random:
        broken("the state of random numbers is not that of plain decoding at the end")


def compare_calls(got: Run, right: Run, *names: str) -> None:
    about = {
        "histories": "processors are shown",
        "draws": "the sampler draws",
        "progress": "the progress of a prompt is",
    }
    for name in names:
        if (a := getattr(got, name)) != (b := getattr(right, name)):
            broken(f"{about[name]} {told(a, b)}")


def told(a: Sequence[Any], b: Sequence[Any]) -> str:
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    one, other = (str(list(side[at : at + 1]))[-60:] for side in (a, b))
    return f"{one} instead of {other} at call {at}, in {len(a)} calls instead of {len(b)}"


def expected_blocks(n: int, depth: int, restored: bool, length: int) -> list[int]:
    """The blocks of drafts with so many right tokens: a right token and a draft. After a restore, the right tokens of
    the last block come first.

    No draft goes past n. The first draft needs the size of the vocabulary, which a first forward pass gives. So after a
    prompt of one token it comes one block later.
    """
    blocks: list[int] = []
    pending, left = 1, n
    while True:
        n_draft = min(K, left) if blocks or length > 1 else 0
        n_right = min(depth, n_draft)
        blocks.append(pending + n_draft)
        pending = pending + n_right + 1 if restored and n_right < n_draft else 1
        left -= n_right
        if left == 0:
            return blocks
        left -= 1


def compare_counts(got: Run) -> None:
    """C8: one forward pass for each cycle, no token fed twice without need, and what the statistics say of it."""
    stats, case, n = got.stats, got.case, len(got.tokens)
    if stats is None:
        return
    accepted, restored = sum(got.flags), case.family.restored
    if stats.accepted != accepted:
        broken(f"{accepted} tokens are marked as drafted, and the statistics say {stats.accepted}")
    if not 0 <= stats.forwards - (n - accepted + 1) <= restored:
        broken(f"{n} tokens of which {accepted} were drafted took {stats.forwards} forward passes")
    if got.drafts is None or got.drafts.strategy is None or case.end in OF_A_STREAM:
        return
    blocks = got.blocks[-(-(case.length - 1) // case.prefill) :]
    if len(blocks) != stats.forwards:
        broken(f"the statistics say {stats.forwards} forward passes, and the blocks were {blocks}")
    if not restored and sum(blocks) != stats.forwards + stats.drafted:
        broken(f"the statistics say {stats.drafted} drafted tokens, and the blocks were {blocks}")
    strategy = got.drafts.strategy
    if isinstance(strategy, AtDepth) and case.end == "limit":
        if not all(strategy.as_meant) or stats.cycles != len(strategy.as_meant):
            broken(f"a draft of {strategy.depth} right tokens was accepted otherwise, in blocks of {blocks}")
        # A block that is fed again stays short, and so does one before an entry is quantized.
        is_exact = n <= 2 * K + 1 and not case.gated and case.family.options.get("quantized_kv_start", 0) == 0
        if is_exact and blocks != (expected := expected_blocks(n, strategy.depth, restored, case.length)):
            broken(f"the blocks are {blocks} instead of {expected}")


def check(case: Case, adapter: Adapters, contract: str) -> None:
    """Decode plain and drafted, and compare what the contract is about, for the series all that is seen."""
    series = adapter.is_series
    if case.drafter in HEADS and case.family.name in HEADLESS:
        with pytest.raises(pytest.skip.Exception, match="does not give the hidden states"):
            drafted(case, adapter, series)
        return
    got, right = drafted(case, adapter, series), case.plain()
    if (case.sampler or case.processors) and (series or contract == "C5"):
        compare_seen(got, right, series)
    compare_tokens(got, right, "", within(near(case.family)))
    if series:
        compare_calls(got, right, "progress")
        if got.reason != (reason := OF_A_STREAM.get(case.end)):
            broken(f"the last response gives as its reason {got.reason!r} instead of {reason!r}")
    if series and case.end != "failure":
        compare_counts(got)
        seen, text = getattr(getattr(got.drafts, "strategy", None), "seen", None), [*case.prompt, *got.tokens]
        if seen is not None and seen != text:
            broken(f"the strategy observed {told(seen, text)}")
    if series or contract == "C3":
        compare_caches(got, right, adapter)
    if case.drafter not in (*WRONG, "none right") and case.n == N and not case.gated and not any(got.flags):
        not_shown("no drafted token was accepted")
