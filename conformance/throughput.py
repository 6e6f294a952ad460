"""Measure what drafting gains a server at several numbers of clients, and where batching gains more.

python -m conformance.throughput [--clients 1 2 4 8] [--concurrency 1 2 8] [--repeats 5]

The model is that of conformance.speed. All clients ask at once for edits that the fixture can do, first without drafts,
which are batched, then with drafts; a rate is all tokens by the time until the last answer, and a gain the median of
the ratios of such pairs. There is one server for each limit on the number of requests that are drafted at a time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from conformance.demo import FIXTURE
from conformance.prompts import PROMPTS
from conformance.serving import Client, serve
from conformance.speed import HIDDEN, widened

EDITS = ["rename", "json"]
TOKENS = 128


def save_widened(folder: Path) -> None:
    """The model of conformance.speed as a directory that mlx_lm.load reads."""
    for path in FIXTURE.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, folder)
    model, _ = widened()
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    config = json.loads((FIXTURE / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": HIDDEN, "torch_dtype": "bfloat16"}))


def ask(server: Client, i: int, draft_type: str) -> tuple[str, dict[str, Any]]:
    """One client's request: its answer, and how many tokens of it there are and were drafted."""
    body = {"messages": PROMPTS[EDITS[i % len(EDITS)]], "max_tokens": TOKENS, "draft_type": draft_type}
    answer = server.post(body).json()
    return answer["choices"][0]["message"]["content"], answer["usage"]


def rate(server: Client, clients: int, draft_type: str) -> tuple[float, list[str], float]:
    """Tokens a second of all clients together, the answers, and the part of the requests that was drafted."""
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda i: ask(server, i, draft_type), range(clients)))
    seconds = time.perf_counter() - start
    drafts = [usage.get("completion_tokens_details", {}).get("draft", {}) for _, usage in answers]
    drafted = sum(draft.get("forwards", 0) > 0 for draft in drafts) / clients
    return sum(usage["completion_tokens"] for _, usage in answers) / seconds, [text for text, _ in answers], drafted


def compare(server: Client, clients: int, repeats: int) -> str:
    ratios, plain_rates, shares = [], [], []
    for _ in range(repeats):
        plain, texts, _ = rate(server, clients, "none")
        drafted, same, share = rate(server, clients, "auto")
        if texts != same:
            return "other texts"
        ratios.append(drafted / plain)
        plain_rates.append(plain)
        shares.append(share)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    share = statistics.mean(shares)
    return f"{statistics.median(plain_rates):.0f} | {statistics.median(ratios):.2f} | {spread} | {share:.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save_widened(Path(folder))
        print("| drafted at a time | clients | plain tokens a second | gain | spread | requests drafted |")
        print("| --- " * 6 + "|")
        for concurrency in args.concurrency:
            with serve("--draft-concurrency", str(concurrency), model=folder) as server:
                # The first requests compile and measure what blocks cost.
                rate(server, 2, "auto")
                for clients in args.clients:
                    row = compare(server, clients, args.repeats)
                    print(f"| {concurrency} | {clients} | {row} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
