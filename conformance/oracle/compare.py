"""Compare a drafted run with the plain one, and say what differs in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import base

from conformance.adapters import HEADS, WRONG, Adapters, Drafts
from conformance.drafters import AtDepth, Head
from conformance.oracle.findings import broken, not_shown
from conformance.oracle.recorder import Run, differ_at
from conformance.oracle.rows import Plain
from conformance.oracle.run import OF_A_STREAM, Case, N, compare_tokens, drafted, plain_turn, second_turn
from conformance.subjects.architectures import RESTORED, is_row_identical, leaves, make_cache
from conformance.subjects.decoded import Family, K, model_of, prompt_of

# Where blocks and single tokens are not equal bit for bit: more than they are apart in any tree, in float32 and models
# of two layers, and far less than a fault makes. The second is for a quantized cache.
MOST, MOST_QUANTIZED = 2e-3, 0.2
# The series from its stage models on computes blocks as single steps. What other trees do is measured.
STEPS = hasattr(base, "SteppedKeys")
# A draft model reads what it missed in blocks, and a block is quantized only after it is read.
QUANTIZED_DRAFTER = 0.02
# Their layers are not called as layers, or give something else: a head is refused.
HEADLESS = ("deepseek_v41", "iquestloopcoder")


def near(family: Family) -> float:
    """The allowed distance of log probabilities: zero where the rows of a block have to equal those of single steps."""
    return 0.0 if is_row_identical(family.model) and (STEPS or not rounds(family)) else most(family)


@cache
def rounds(family: Family) -> bool:
    """Whether the tree computes blocks behind a prompt as other bits than their tokens one by one."""
    model = model_of(family)

    def logits(prompt: int, length: int) -> mx.array:
        tokens, caches = mx.array([prompt_of(prompt + N)]), family.caches()
        model(tokens[:, :prompt], cache=caches)
        return mx.concatenate([model(block, cache=caches) for block in mx.split(tokens[:, prompt:], N // length, 1)], 1)

    # The first block of a ring that is longer than its window is another one than those behind it.
    lengths = [(prompt, length) for prompt in family.prompts for length in range(2, K + 2) if N % length == 0]
    return not all(mx.array_equal(logits(*one), logits(one[0], 1)).item() for one in lengths)


def most(family: Family) -> float:
    """More than what is read in other parts is apart, and far less than a fault makes."""
    return MOST_QUANTIZED if family.options else MOST


def compare_caches(case: Case, got: Run, adapter: Adapters) -> None:
    """C3: the caches of the caller hold the prompt and what was yielded, and a second turn on them is right."""
    for i, (a, b) in enumerate(zip(shape(got.cache), shape(case.plain().cache), strict=True)):
        if a != b:
            broken(f"after {len(got.tokens)} tokens, cache {i} is {a} instead of {b}")
    bound = 16 * near(case.family)
    turn = plain_turn(case.undrafted())
    compare_tokens(second_turn(case, deepcopy(got.cache)), turn, "in a plain second turn, ", bound)
    if got.drafts is not None:
        if got.drafts.name in HEADS:
            compare_head(case, got, got.drafts)
        elif got.drafts.left and adapter.is_series and case.end != "failure":
            compare_drafters_cache(case, got, got.drafts)
        again = replace(got.drafts, right=[*case.next_prompt, *turn.tokens], strategy=None)
        compare_tokens(second_turn(case, got.cache, adapter, again), turn, "in a drafted second turn, ", bound)


def shape(layers: list[Any]) -> list[str]:
    """What is equal of caches that hold the same tokens, in any order of rows."""
    return [f"{type(layer).__name__} of {getattr(layer, 'offset', 0)} tokens" for layer in leaves(layers)]


@cache
def drafter_of(family: Family, name: str) -> Plain:
    return Plain(Drafts(name, []).draft_model(model_of(family)), **family.options)


def compare_drafters_cache(case: Case, got: Run, drafts: Drafts) -> None:
    """The cache of a draft model holds the prompt and what was yielded too."""
    off = drafter_of(case.family, drafts.name).off(drafts.left, case.prompt, got.tokens)
    if off > 16 * (QUANTIZED_DRAFTER if case.family.options else 1e-5 if mx.default_device() == mx.cpu else MOST):
        broken(f"what follows on the cache of the draft model is off by {off:.2g}")


def held(headed: Any, caches: list[Any]) -> tuple[list[int], list[float]]:
    """The tokens but the first, which a head is shown for its next draft, and the digests of their hidden states."""
    headed.draft(mx.array([[0]]), caches, 1)
    keys, values = (x[0, 0, :, 0] for x in caches[-1][1].keys_and_values())
    return keys.astype(mx.int32).tolist(), values.tolist()


def compare_head(case: Case, got: Run, drafts: Drafts) -> None:
    """A head holds the tokens that were kept and no other, and was shown the hidden state of each."""
    # A quantized cache of keys and values shows other numbers.
    if case.family.options:
        return
    if not drafts.left:
        broken("the cache of the head never reaches the caller")
    # A draw that fails comes behind a token that was fed, as in plain decoding.
    text = case.plain(N).text[: len(got.text) + (case.end == "failure")]
    tokens, shown = held(headed(case.family), [*got.cache, *drafts.left])
    if tokens != text[1:]:
        broken(f"the head holds {len(tokens)} tokens that end with {tokens[-6:]}, instead of {text[1:][-6:]}")
    for i, (a, b) in enumerate(zip(shown, shown_alone(case.family, tuple(text)), strict=True)):
        if abs(a - b) > 2e-3:
            broken(f"the head is shown another hidden state with token {i + 1} of {len(text)}, off by {abs(a - b):.2g}")


def headed(family: Family) -> Any:
    from mlx_lm.draft import HeadedModel

    return HeadedModel(model_of(family), Head([]))


@cache
def shown_alone(family: Family, text: tuple[int, ...]) -> list[float]:
    """What a head is shown where single tokens are fed and nothing is drafted."""
    model, caches = headed(family), family.caches()
    caches += make_cache(model)[len(make_cache(model_of(family))) :]
    for token in text:
        model(mx.array([[token]]), cache=caches)
    return held(model, caches)[1]


def compare_seen(got: Run, right: Run, exact: bool) -> None:
    """C5: processors see the history of plain decoding, and with ``exact`` once for each token, as samplers do."""
    if not exact:
        shown = {tuple(history) for history, _ in got.histories}
        for i, (history, _) in enumerate(right.histories[: 2 * len(right.tokens)]):
            if tuple(history) not in shown:
                broken(f"at token {i // 2}, no processor is shown the {len(history)} tokens before it")
        return
    compare_calls("processors are shown", got.histories, right.histories)
    compare_calls("the sampler draws", got.draws, right.draws)
    if got.random != right.random:
        broken("the state of random numbers is not that of plain decoding at the end")


def compare_calls(about: str, a: Sequence[Any], b: Sequence[Any]) -> None:
    if a != b:
        at = differ_at(a, b)
        one, other = (str(list(side[at : at + 1]))[-60:] for side in (a, b))
        broken(f"{about} {one} instead of {other} at call {at}, in {len(a)} calls instead of {len(b)}")


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


def compare_counts(case: Case, got: Run, strategy: Any) -> None:
    """C8: one forward pass for each cycle, no token fed twice without need, and what the statistics say of it."""
    stats, n = got.stats, len(got.tokens)
    if stats is None:
        return
    accepted, restored = sum(got.drafted), case.family.model in RESTORED
    if stats.accepted != accepted:
        broken(f"{accepted} tokens are marked as drafted, and the statistics say {stats.accepted}")
    if not 0 <= stats.forwards - (n - accepted + 1) <= restored:
        broken(f"{n} tokens of which {accepted} were drafted took {stats.forwards} forward passes")
    if strategy is None or case.end in OF_A_STREAM:
        return
    blocks = got.blocks[-(-(case.length - 1) // case.prefill) :]
    if len(blocks) != stats.forwards:
        broken(f"the statistics say {stats.forwards} forward passes, and the blocks were {blocks}")
    if not restored and sum(blocks) != stats.forwards + stats.drafted:
        broken(f"the statistics say {stats.drafted} drafted tokens, and the blocks were {blocks}")
    # What guides drafts also shortens and lengthens them.
    if isinstance(strategy, AtDepth) and case.end == "limit" and case.processors != "pairs":
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
            drafted(case, adapter)
        return
    got, right = drafted(case, adapter), case.plain()
    if (case.sampler or case.processors) and (series or contract == "C5"):
        compare_seen(got, right, series)
    compare_tokens(got, right, "", near(case.family))
    if series:
        compare_calls("the progress of a prompt is", got.progress, right.progress)
        if (ended := got.last and got.last.finish_reason) != (reason := OF_A_STREAM.get(case.end)):
            broken(f"the last response gives as its reason {ended!r} instead of {reason!r}")
    if series and case.end != "failure":
        strategy: Any = got.drafts and got.drafts.strategy
        compare_counts(case, got, strategy)
        if hasattr(strategy, "seen"):
            compare_calls("the strategy observed", strategy.seen, got.text)
    if series or contract == "C3":
        compare_caches(case, got, adapter)
    if case.drafter not in (*WRONG, "none right") and case.n == N and not case.gated and not any(got.drafted):
        not_shown("no drafted token was accepted")
