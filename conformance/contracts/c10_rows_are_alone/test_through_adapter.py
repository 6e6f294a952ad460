"""The rows of BatchGenerator are what they are alone, without drafts, asked as scripts/judge.sh does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator, generate_step

from conformance.adapters import Adapters
from conformance.judging.decodes import near, penalty, tokens_of
from conformance.oracle.findings import broken, not_offered
from conformance.oracle.recorder import gap
from conformance.subjects.decoded import Family, model_of, prompt_of

pytestmark = pytest.mark.usefixtures("uncompiled")
# The lengths of the prompts of three rows, and of their answers: each row leaves the batch at another step.
PROMPTS, LENGTHS = (21, 9, 14), (6, 18, 11)
# BatchGenerator makes the caches itself, and those of the last two cannot be merged.
WITHOUT = ("llama quantized", "llama quantized late", "llama max_kv_size", "llama4", "deepseek_v41")
Steps = list[tuple[int, mx.array]]


def prompts() -> list[list[int]]:
    longest = prompt_of(30)
    return [longest[i : i + n] for i, n in enumerate(PROMPTS)]


def alone(family: Family, prompt: list[int], n: int, processors: list[Any]) -> Steps:
    steps = generate_step(mx.array(prompt), model_of(family), max_tokens=n, logits_processors=processors)
    return [(int(token), logprobs) for token, logprobs in steps]


def together(family: Family, late: int, **options: Any) -> list[Steps]:
    """The answers of a batch. The last row joins when the others have so many tokens."""
    generator = BatchGenerator(model_of(family), max_tokens=max(LENGTHS))
    found: dict[int, Steps] = {}

    def insert(*rows: int) -> None:
        chosen = {name: [value[i] for i in rows] for name, value in options.items()}
        try:
            uids = generator.insert([prompts()[i] for i in rows], max_tokens=[LENGTHS[i] for i in rows], **chosen)
        except TypeError as error:
            not_offered(f"BatchGenerator.insert takes no {', '.join(chosen)}: {error}")
        found.update((uid, []) for uid in uids)

    insert(*range(2 if late else 3))
    while responses := generator.next_generated():
        for response in responses:
            found[response.uid].append((int(response.token), response.logprobs))
        if len(found) < 3 and len(found[0]) == late:
            insert(2)
    return list(found.values())


def compare(family: Family, late: int = 0, processors: list[list[Any]] | None = None) -> None:
    options = {} if processors is None else {"logits_processors": processors}
    got = together(family, late, **options)
    for i, (steps, prompt, n) in enumerate(zip(got, prompts(), LENGTHS, strict=True)):
        right = alone(family, prompt, n, processors[i] if processors else [])
        a, b = tokens_of(steps), tokens_of(right)
        if a != b:
            at = next((t for t, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            broken(f"row {i} of 3: tokens {a[: at + 1][-4:]} instead of {b[: at + 1][-4:]}, at token {at}")
        if (off := gap([p for _, p in steps], [p for _, p in right])) > near(family):
            broken(f"row {i} of 3: the log probabilities are off by {off:.2g}")


@pytest.fixture(autouse=True)
def rests_on(request: pytest.FixtureRequest, about: Callable[..., None]) -> None:
    family = request.getfixturevalue("family")
    batched = {"KVCache": "BatchKVCache", "RotatingKVCache": "BatchRotatingKVCache"}
    about(family, *(batched[name] for name in family.rests_on() if name in batched))


def test_rows(family: Family, adapter: Adapters) -> None:
    """Rows of different lengths that end one after the other."""
    compare(family)


def test_a_row_that_joins(family: Family, adapter: Adapters) -> None:
    compare(family, late=4)


@pytest.mark.contract("C5")
def test_processors_of_one_row(family: Family, adapter: Adapters) -> None:
    """The processors of a greedy row act on this row, and on no other."""
    compare(family, processors=[[], [penalty], []])
