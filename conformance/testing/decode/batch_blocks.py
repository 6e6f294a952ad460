"""Feed blocks to the rows of a batch, without a generator, and compare with single steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.generate import PromptProcessingBatch
from mlx_lm.models.cache import snapshot_prompt_cache, trim_prompt_cache

from conformance.doors.batch import VOCAB
from conformance.oracle.recorder import gap, log_probabilities
from conformance.subjects.architectures import make_cache

# The first prompt fills the windows and chunks of the tiny configurations.
PROMPT, BLOCK = 21, 5
# How many tokens of each block a row keeps. The rows end further and further apart, and are far past every window and
# sparse selection at the end.
KEPT = [(5, 1, 3), (5, 1, 2), (1, 4, 5), (5, 2, 3), (5, 1, 5), (3, 1, 4), (5, 1, 1), (5, 3, 5), (5, 1, 2)]
TEXTS = [[(n * n + 11 * i * n + 5 * i) % 61 for n in range(PROMPT + BLOCK * len(KEPT))] for i in range(len(KEPT[0]))]
# Log probabilities, a row for each token that was fed.
Rows = list[mx.array]


def feed(model: Any, layers: list[Any], tokens: Sequence[Sequence[int]]) -> mx.array:
    return log_probabilities(model(mx.array(tokens), cache=layers)[..., :VOCAB])


def prompted(model: Any, prompts: Sequence[Sequence[int]]) -> list[Any]:
    """The caches of a batch that was fed prompts as a generator feeds them."""
    batch = PromptProcessingBatch(model, list(range(len(prompts))), [make_cache(model) for _ in prompts])
    batch.prompt([list(prompt) for prompt in prompts])
    layers: list[Any] = batch.prompt_cache
    return layers


def alone(model: Any, text: Sequence[int], blocks: Sequence[int]) -> Rows:
    """What follows the prompt of a text, fed alone in blocks of these lengths."""
    layers, at, rows = make_cache(model), PROMPT, []
    feed(model, layers, [text[:at]])
    for n in blocks:
        rows += list(feed(model, layers, [text[at : at + n]])[0])
        at += n
    return rows


def in_step(model: Any, layers: list[Any], texts: Sequence[Sequence[int]], blocks: Sequence[int]) -> list[Rows]:
    """The rows of a batch that is fed in blocks of these lengths. Its caches stay as they are."""
    layers, at = copy.deepcopy(layers), 0
    rows: list[Rows] = [[] for _ in texts]
    for n in blocks:
        for row, fed in zip(rows, feed(model, layers, [text[at : at + n] for text in texts]), strict=True):
            row += list(fed)
        at += n
    return rows


def ending_apart(model: Any) -> list[Rows]:
    """The rows of a batch in which each block is trimmed by row, with wrong tokens at the end of each block."""
    layers, ends = prompted(model, [text[:PROMPT] for text in TEXTS]), [PROMPT] * len(TEXTS)
    rows: list[Rows] = [[] for _ in TEXTS]
    for kept in KEPT:
        block = []
        for text, end, n in zip(TEXTS, ends, kept, strict=True):
            right = text[end : end + BLOCK]
            block.append(right[:n] + [(token + 1) % VOCAB for token in right[n:]])
        # Recurrent layers learn from it that the next block may be trimmed.
        snapshot_prompt_cache(layers)
        fed = feed(model, layers, block)
        trim_prompt_cache(layers, [BLOCK - n for n in kept])
        for i, n in enumerate(kept):
            rows[i] += list(fed[i, :n])
        ends = [end + n for end, n in zip(ends, kept, strict=True)]
    return rows


def apart(got: Sequence[Rows], right: Sequence[Rows]) -> float:
    """The largest difference of log probabilities. A row that got fewer tokens is compared as far as it goes."""
    return max(gap(rows, others[: len(rows)]) for rows, others in zip(got, right, strict=True))


def as_close(distance: float, noises: Callable[[], Iterator[float]]) -> bool:
    """Measuring the noise takes as long as the rest, so it is done only for a model that has some."""
    return distance == 0 or any(distance <= 8 * noise for noise in noises())
