"""Measure what a small ngram-mod table costs: it forgets some drafts, and mixes up others.

python -m conformance.bench.memory_sweep                    # 10 and 100 prompts, about a minute
python -m conformance.bench.memory_sweep --prompts 1000

It needs no model: the answer of each conversation is known, and a draft is compared with it. One table serves all
conversations in turn, as in a server. It is compared with a table that forgets nothing, and with ngram-mod as
published: there each n-gram has one place, and two n-grams can share it.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlx_lm.draft import NgramModStrategy, NgramModTable
from mlx_lm.draft.ngram_mod import DEFAULT_TABLE_SIZE, HASH_MASK, HASH_MULTIPLIER

from conformance.testing.texts.recorded_streams import CHARS_PER_TOKEN, VOCAB, Request, bpe, conversation
from conformance.testing.texts.workloads import KINDS, Corpus, draw

SIZES = [2**bits for bits in (12, 14, 15, 16, 17, 18, 20, 22)]
# The lengths of prompts, in tokens. No answer is longer than the last.
SHORTEST, LONGEST, LONGEST_ANSWER = 1000, 2000, 1200
N_DRAFT = 6


class Exact(NgramModTable):  # type: ignore[misc]
    """A table that forgets nothing and mixes nothing up."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.next: dict[int, int] = {}

    def place(self, key: int) -> int:
        return key

    def rolled(self, key: int, token: int, first: int) -> int:
        """The hash after one token is added and the first one is removed."""
        return int((key + token + first * self._drop) * HASH_MULTIPLIER & HASH_MASK)

    def _learn(self, tokens: Sequence[int], start: int, stop: int, key: int) -> None:
        for token, first in zip(tokens[start:stop], tokens[start - self.n : stop - self.n], strict=True):
            self.next[self.place(key)] = token
            key = self.rolled(key, token, first)

    def _draft(self, window: Sequence[int], key: int, n_max: int) -> list[int]:
        window = list(window)
        for i in range(n_max):
            token = self.next.get(self.place(key))
            if token is None:
                break
            key = self.rolled(key, token, window[i])
            window.append(token)
        return window[self.n :]


class Published(Exact):
    """A table with one place for an n-gram. It does not tell n-grams in the same place apart."""

    def place(self, key: int) -> int:
        return key % int(self.size)


def requests(count: int, seed: int) -> list[Request]:
    """The last requests of conversations of all kinds."""
    rng, corpus = random.Random(seed), Corpus.load()
    found: list[Request] = []
    while len(found) < count:
        kind = rng.choice(KINDS)
        # The prompt is half of a code or prose conversation. A chat repeats its text several times.
        scale = {"code": 3.0, "prose": 3.0, "chat": 0.8}.get(kind, 1.0)
        chars = CHARS_PER_TOKEN * scale * rng.uniform(SHORTEST, LONGEST)
        for request in list(conversation(draw(rng, corpus, kind, int(chars)), bpe()))[-1:]:
            if SHORTEST <= len(request.prompt) <= LONGEST:
                found.append(Request(request.prompt, request.answer[:LONGEST_ANSWER]))
    return found


@dataclass
class Count:
    drafted: int = 0
    accepted: int = 0
    forwards: int = 0

    @property
    def wrong(self) -> int:
        return self.drafted - self.accepted


def run(asked: Sequence[Request], table: Any) -> Count:
    """Count accepted tokens and forward passes. Every draft is fed, right or wrong."""
    count = Count()
    for request in asked:
        strategy = NgramModStrategy(table, VOCAB)
        strategy.observe(request.prompt)
        done, answer = 0, request.answer
        while done < len(answer):
            draft = strategy.propose(min(N_DRAFT, len(answer) - done - 1))
            wanted = answer[done : done + len(draft)]
            n_right = next((i for i, token in enumerate(draft) if token != wanted[i]), len(draft))
            if draft:
                strategy.accept(n_right, len(draft))
            strategy.observe(answer[done : done + n_right + 1])
            done += n_right + 1
            count = Count(count.drafted + len(draft), count.accepted + n_right, count.forwards + 1)
    return count


def row(asked: Sequence[Request], exact: Count, size: int) -> str:
    table = NgramModTable(size=size)
    ours, published = run(asked, table), run(asked, Published(size=size))
    cells = [f"{size}{' (default)' if size == DEFAULT_TABLE_SIZE else ''}", f"{size // 256}", f"{table.occupancy:.1%}"]
    for count in (ours, published):
        cells += [f"{1 - count.accepted / exact.accepted:.2%}", str(count.wrong), str(count.forwards)]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, nargs="+", default=[10, 100], help="conversations that share a table")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    every = requests(max(args.prompts), args.seed)
    for n in args.prompts:
        asked = every[:n]
        exact = run(asked, Exact())
        learned = sum(len(request.prompt) + len(request.answer) for request in asked)
        print(
            f"{n} prompts, {learned} tokens. Nothing forgotten: {exact.accepted} accepted, {exact.wrong} wrong, ",
            end="",
        )
        print(f"{exact.forwards} forward passes\n")
        print("| entries | KiB | in use | accepted lost | wrong | forwards | published: lost | wrong | forwards |")
        print("| --- |" + " --- |" * 8)
        for size in SIZES:
            print(row(asked, exact, size), flush=True)
        print()


if __name__ == "__main__":
    main()
