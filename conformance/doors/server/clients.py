"""Clients that send requests at the same time, and the right answers to compare with."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from conformance.doors.server.process import CHAT, Client, Server
from conformance.doors.server.traffic import CODE, Answer, Body, Request, draw, draw_body, follow, judge, send
from conformance.subjects.prompts import Message, chat, fenced

SEED, CLIENTS = 5, 8
EDIT: list[Message] = chat(f"Change `total` to `count`.\n{fenced(CODE)}")
GATE_OFF: Body = {"draft_type": "suffix", "disable_adaptive_gate": True}
# At most two tokens in each forward pass, so that a long answer takes long.
SLOWLY: Body = GATE_OFF | {"num_draft_tokens": 1}
# Forbids the end tokens of the fixture.
ENDLESS: Body = {"max_tokens": 300, "logit_bias": {"0": -100, "4": -100}}
SHORT = Request(CHAT, {"messages": chat("Quote."), "max_tokens": 4})


class Reference:
    """The right answers. A server without drafts, other clients and caches computes each of them once."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.known: dict[str, Answer] = {}

    def __call__(self, request: Request) -> Answer:
        if request.key not in self.known:
            answer = send(self.server, request.plain)
            assert answer.status == 200, answer
            assert answer.cached_tokens == 0
            self.known[request.key] = answer
        return self.known[request.key]


class Reader(threading.Thread):
    """A client that reads a stream in a thread. The constructor returns after the first piece."""

    def __init__(self, client: Client, request: Request) -> None:
        super().__init__(daemon=True)
        self.pieces = follow(client, request.path, request.body | request.draft)
        self.text = next(self.pieces)
        self.error: Exception | None = None
        self.leaves = False
        self.start()

    def run(self) -> None:
        try:
            for piece in self.pieces:
                self.text += piece
                if self.leaves:
                    break
        except Exception as e:
            self.error = e
        finally:
            self.pieces.close()

    def leave(self) -> None:
        """Close the connection, and wait until that is done."""
        self.leaves = True
        self.join()


def drafted(request: Request, draft: Body) -> Request:
    name = "SuffixStrategy" if draft.get("draft_type") == "suffix" else "EditStrategy"
    return Request(request.path, request.body, draft, name)


def mixed(n: int) -> list[Request]:
    rng = random.Random(SEED)
    bodies = [draw_body(rng) for _ in range(60)]
    return [draw(rng, bodies) for _ in range(n)]


def load(server: Client, requests: Sequence[Request], clients: int = CLIENTS) -> list[Answer]:
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda request: send(server, request), requests))


def judge_all(requests: Sequence[Request], answers: Sequence[Answer], right: Reference) -> None:
    for request, answer in zip(requests, answers, strict=True):
        judge(request, answer, right(request))
