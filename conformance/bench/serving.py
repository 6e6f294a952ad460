"""The server under several clients at once, drafted and not, and where batching gains more than drafts do.

All clients ask at once for edits that the fixture can do, first without drafts, which are batched, then with drafts.
There is one server for each limit on the number of requests that are drafted at a time.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.bench import models
from conformance.bench.cells import Row
from conformance.bench.models import Subject
from conformance.bench.plan import Plan, Progress
from conformance.prompts import PROMPTS
from conformance.serving import Client, serve

EDITS = ["rename", "json"]


@dataclass
class Burst:
    """What all clients were answered, the rate of all together, and the part of them that was drafted."""

    texts: list[str]
    tps: float
    drafted: float


def ask(server: Client, i: int, draft_type: str, tokens: int) -> tuple[str, dict[str, Any]]:
    body = {"messages": PROMPTS[EDITS[i % len(EDITS)]], "max_tokens": tokens, "draft_type": draft_type}
    answer = server.post(body).json()
    return answer["choices"][0]["message"]["content"], answer["usage"]


def burst(server: Client, clients: int, draft_type: str, tokens: int) -> Burst:
    """One request of each client, all sent at once; the clock stops at the last answer."""
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda i: ask(server, i, draft_type, tokens), range(clients)))
    seconds = time.perf_counter() - start
    drafts = [usage.get("completion_tokens_details", {}).get("draft", {}) for _, usage in answers]
    drafted = sum(draft.get("forwards", 0) > 0 for draft in drafts) / clients
    total = sum(usage["completion_tokens"] for _, usage in answers)
    return Burst([text for text, _ in answers], total / seconds, drafted)


def compared(server: Client, clients: int, plan: Plan) -> Row:
    """Pairs of a plain burst and a drafted one. Without parity there is no speed."""
    pairs = [
        (burst(server, clients, "none", plan.tokens), burst(server, clients, "auto", plan.tokens))
        for _ in range(plan.repeats)
    ]
    ratios = [drafted.tps / plain.tps for plain, drafted in pairs]
    equal = all(each.texts == pairs[0][0].texts for pair in pairs for each in pair)
    return {
        "clients": clients,
        "plain_tps": statistics.median(plain.tps for plain, _ in pairs),
        "share": statistics.mean(drafted.drafted for _, drafted in pairs),
        "parity": equal,
        "speed": statistics.median(ratios) if equal else None,
        "low": min(ratios) if equal else None,
        "high": max(ratios) if equal else None,
    }


@contextmanager
def directory(subject: Subject) -> Iterator[str]:
    """What the server can load: the name of a model, or the fixture's form in a directory."""
    if not subject.fixture:
        yield subject.name
        return
    with tempfile.TemporaryDirectory() as folder:
        yield str(models.save(subject.model, Path(folder)))


def measure(subject: Subject, plan: Plan, progress: Progress) -> Iterator[Row]:
    """A row for each limit and number of clients."""
    with directory(subject) as model:
        for limit in plan.draft_limits:
            with serve("--draft-concurrency", str(limit), model=model) as server:
                # The first requests compile, and measure what blocks cost.
                burst(server, 2, "auto", plan.tokens)
                for clients in plan.clients:
                    if limit != min(plan.draft_limits) and clients <= min(plan.draft_limits):
                        continue
                    row = compared(server, clients, plan)
                    shown = "NO PARITY" if row["speed"] is None else f"{row['speed']:.2f}x"
                    progress(f"serving: {limit} drafted at a time, {clients} clients: {shown}")
                    yield subject.labels() | {"limit": limit, "batch": clients} | row
