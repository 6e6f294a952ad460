"""Measure the server with several clients at once: what drafts in a batch gain over plain batching.

Plain and drafted runs take turns in one process, and each ratio compares two neighbours. In one kind all clients copy,
in another only some do. Their prompts are cached, so the time is that of decoding. In a third kind a client with an
uncached prompt comes while four others are answered.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from conformance.doors.server.process import Client, serve
from conformance.lab.bench import models
from conformance.lab.bench.cells import Row, spread
from conformance.lab.bench.models import Subject
from conformance.subjects.prompts import PROMPTS

COPIES, OTHER = ("rename", "json"), "quote"
# Without penalties the fixture repeats itself. The end tokens are forbidden, so that answers are long.
NOT_AGAIN: dict[str, Any] = {"presence_penalty": 2.0, "frequency_penalty": 1.0, "logit_bias": {"0": -100, "4": -100}}
NOT_AGAIN |= {"presence_context_size": 200, "frequency_context_size": 200}
# The number of clients that are busy when one more comes.
BUSY = 4


@dataclass
class Burst:
    """The answers to all clients, and a rate: more is better."""

    texts: list[str]
    figure: float
    tokens: int = 0
    forwards: int = 0


def body(name: str, draft_type: str, tokens: int) -> dict[str, Any]:
    fields = NOT_AGAIN if name == OTHER else {}
    return {"messages": PROMPTS[name], "max_tokens": tokens, "draft_type": draft_type, **fields}


def ask(server: Client, request: dict[str, Any]) -> tuple[str, dict[str, Any], float]:
    start = time.perf_counter()
    answer = server.post(request).json()
    return answer["choices"][0]["message"]["content"], answer["usage"], time.perf_counter() - start


def burst(server: Client, names: Sequence[str], draft_type: str, tokens: int, watched: str = "") -> Burst:
    """Send one request for each client at once. The rate is tokens a second of all, or of the ``watched`` clients."""
    start = time.perf_counter()
    with ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(lambda name: ask(server, body(name, draft_type, tokens)), names))
    seconds = time.perf_counter() - start
    drafts = [usage.get("completion_tokens_details", {}).get("draft", {}) for _, usage, _ in answers]
    counts = [usage["completion_tokens"] for _, usage, _ in answers]
    rates = [n / took for name, n, (_, _, took) in zip(names, counts, answers, strict=True) if name == watched]
    figure = statistics.mean(rates) if rates else sum(counts) / seconds
    forwards = sum(draft.get("forwards", 0) for draft in drafts)
    return Burst([text for text, _, _ in answers], figure, sum(counts), forwards)


def first_token(server: Client, draft_type: str, tokens: int) -> Burst:
    """Send one more request while others are answered. The rate is one over the seconds to its first token."""
    with ThreadPoolExecutor(BUSY) as pool:
        busy = [server.pieces(body(COPIES[i % 2], draft_type, tokens)) for i in range(BUSY)]
        begun = list(pool.map(next, busy))
        start = time.perf_counter()
        with closing(server.pieces(body("delete", draft_type, tokens))) as pieces:
            first = next(pieces)
            seconds = time.perf_counter() - start
            rest = list(pool.map("".join, busy))
            texts = [*map("".join, zip(begun, rest, strict=True)), first + "".join(pieces)]
    return Burst(texts, 1 / seconds)


def compared(once: Callable[[str], Burst], repeats: int) -> Row:
    """Compare pairs of a plain and a drafted burst. Without parity there is no speed."""
    pairs = [(once("none"), once("auto")) for _ in range(repeats)]
    ratios = [drafted.figure / plain.figure for plain, drafted in pairs]
    equal = all(each.texts == pairs[0][0].texts for pair in pairs for each in pair)
    forwards = sum(drafted.forwards for _, drafted in pairs)
    return {
        "plain": statistics.median(plain.figure for plain, _ in pairs),
        "tokens_per_forward": sum(drafted.tokens for _, drafted in pairs) / forwards if forwards else None,
        **spread(ratios, equal),
    }


Cases = Iterator[tuple[str, int, Callable[[str], Burst]]]


def decoding(server: Client, clients: Sequence[int], tokens: int) -> Cases:
    """The comparisons with cached prompts: a name, the number of clients, and a function for one run."""
    for n in clients:
        yield "copies", n, partial(burst, server, [COPIES[i % 2] for i in range(n)], tokens=tokens)
    mixed = [*COPIES, OTHER, OTHER]
    yield "copies and others", len(mixed), partial(burst, server, mixed, tokens=tokens)
    alone = partial(burst, server, mixed, tokens=tokens, watched=OTHER)
    yield "copies and others, the others alone", len(mixed), alone


def joining(server: Client, _: Sequence[int], tokens: int) -> Cases:
    """The comparison with a prompt that has to be processed."""
    yield "first token beside copies", BUSY + 1, partial(first_token, server, tokens=tokens)


def measure(subject: Subject, clients: Sequence[int], tokens: int, repeats: int) -> Iterator[Row]:
    """A row for each kind of comparison and number of clients."""
    with tempfile.TemporaryDirectory() as folder:
        models.write(subject, Path(folder))
        for cache_size, cases in ("10", decoding), ("0", joining):
            with serve("--prompt-cache-size", cache_size, model=folder, cold=True) as server:
                # The first requests compile functions, and teach the planner the costs of blocks.
                burst(server, [*COPIES, OTHER], "auto", tokens)
                burst(server, COPIES * 2, "auto", tokens)
                for requests, n, once in cases(server, clients, tokens):
                    yield {"requests": requests, "clients": n} | compared(once, repeats)
