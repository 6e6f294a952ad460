"""Requests to a server, its answers, and the right ones: what the library decodes, each alone and without a cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from conformance import FIXTURE
from conformance.doors.server.process import CHAT, Body, Client
from conformance.oracle.findings import broken

# The longest draft of "auto".
MOST_DRAFTED = 15
KINDS = ("repetition", "presence", "frequency")
PENALTIES = [f"{kind}_{what}" for kind in KINDS for what in ("penalty", "context_size")]


@dataclass(frozen=True)
class Request:
    """A request. Those with the same path and body get the same text."""

    path: str
    body: Body
    # The fields of drafting, and the strategy that has to draft, if this is known.
    draft: Body = field(default_factory=dict)
    strategy: str = ""
    streamed: bool = False

    def but(self, *, draft: Body | None = None, **fields: Any) -> Request:
        return Request(self.path, self.body | fields, self.draft if draft is None else draft, streamed=self.streamed)

    @property
    def is_random(self) -> bool:
        """Whether the server samples without a seed."""
        return "temperature" in self.body and "seed" not in self.body

    def __str__(self) -> str:
        return f"{self.path} {json.dumps(self.body | self.draft)}{' (streamed)' * self.streamed}"


@dataclass(frozen=True)
class Answer:
    status: int
    text: str = ""
    finish_reason: str | None = None
    usage: Body = field(default_factory=dict)
    error: str = ""
    # The tokens and their log probabilities, if the request asks for them.
    logprobs: tuple[tuple[int, float], ...] = ()

    @property
    def draft(self) -> Body:
        """The statistics of drafting. Empty without drafting."""
        counts: Body = self.usage.get("completion_tokens_details", {}).get("draft", {})
        return counts

    @property
    def cached_tokens(self) -> int:
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])


def send(client: Client, request: Request) -> Answer:
    body = request.body | request.draft
    if request.streamed:
        said = list(client.stream(body | {"stream_options": {"include_usage": True}}, request.path))
    else:
        said = [client.post(body, request.path).json()]
    if (error := said[-1].get("error")) is not None:
        return Answer(error["code"], error=error["message"])
    choices = [choice for event in said for choice in event["choices"]]
    (reason,) = (choice["finish_reason"] for choice in choices if choice["finish_reason"])
    # The parts of a streamed answer are named otherwise.
    text = "".join(
        one.get("text") or (one.get("message") or one.get("delta", {})).get("content") or "" for one in choices
    )
    logprobs = [one for choice in choices for one in (choice.get("logprobs") or {}).get("content", [])]
    return Answer(200, text, reason, said[-1]["usage"], "", tuple((one["id"], one["logprob"]) for one in logprobs))


def load(server: Client, requests: Sequence[Request], clients: int = 8) -> list[Answer]:
    """Send requests from several clients at the same time."""
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda request: send(server, request), requests))


@cache
def loaded(path: str) -> Any:
    return mlx_lm.load(path)


class Right:
    """The right answers. Each is decoded once, with options of generate_step that all have."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.known: dict[str, Answer] = {}

    def __call__(self, request: Request) -> Answer:
        # Without sampling no text depends on a seed.
        body = {name: value for name, value in request.body.items() if name != "seed" or "temperature" in request.body}
        key = request.path + json.dumps(body, sort_keys=True)
        if key not in self.known:
            self.known[key] = self.decode(body, request.path)
        return self.known[key]

    def decode(self, body: Body, path: str) -> Answer:
        model, tokenizer = loaded(str(body.get("model", FIXTURE)))
        if path == CHAT:
            given = {"tools": body.get("tools"), "add_generation_prompt": True, "tokenize": True}
            prompt = tokenizer.apply_chat_template(body["messages"], **given)
        else:
            prompt = tokenizer.encode(body["prompt"])
        words = body.get("stop") or []
        words = [words] if isinstance(words, str) else words
        tokens, logprobs, reason, end, detokenizer = list[int](), list[float](), "length", None, tokenizer.detokenizer
        for token, row in generate_step(mx.array(prompt), model, **arguments(body), **self.options):
            tokens.append(int(token))
            logprobs.append(row[int(token)].item())
            if token in tokenizer.eos_token_ids:
                reason = "stop"
                break
            detokenizer.add_token(token)
            # As it is streamed: the space behind a word comes with the next one.
            if places := [detokenizer.text.index(word) for word in words if word in detokenizer.text]:
                reason, end = "stop", min(places)
                break
        detokenizer.finalize()
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        return Answer(200, detokenizer.text[:end], reason, usage, "", tuple(zip(tokens, logprobs, strict=True)))


def arguments(body: Body) -> dict[str, Any]:
    """Those of generate_step for a request. A seed is set."""
    if "seed" in body:
        # OpenAI's seeds have a sign, those of MLX have none.
        mx.random.seed(body["seed"] % 2**64)
    bias = {int(token): value for token, value in body.get("logit_bias", {}).items()}
    penalties = {name: body[name] for name in PENALTIES if name in body}
    return {
        "max_tokens": body["max_tokens"],
        "sampler": make_sampler(body.get("temperature", 0.0), body.get("top_p", 0.0)),
        "logits_processors": make_logits_processors(bias or None, **penalties),
    }


def judge(request: Request, answer: Answer, right: Answer, noise: float = 0.0) -> None:
    """Compare an answer with the right one. Of one that is sampled without a seed only the counts are known."""
    if answer.status != 200:
        broken(f"the answer is {answer.status} {answer.error!r}", str(request))
    pairs: list[tuple[str, Any, Any]] = [("prompt tokens", answer.usage["prompt_tokens"], right.usage["prompt_tokens"])]
    if not request.is_random:
        pairs += [
            (name.replace("_", " "), getattr(answer, name), getattr(right, name)) for name in ("text", "finish_reason")
        ]
        pairs.append(("completion tokens", answer.usage["completion_tokens"], right.usage["completion_tokens"]))
    if answer.logprobs:
        seen, wanted = ([token for token, _ in one.logprobs] for one in (answer, right))
        pairs.append(("tokens", seen, wanted))
    for what, found, expected in pairs:
        if found != expected:
            broken(f"{what}: {found!r} instead of {expected!r}", str(request))
    for i, ((_, found), (_, expected)) in enumerate(zip(answer.logprobs, right.logprobs, strict=False)):
        if abs(found - expected) > noise:
            broken(f"log probability of token {i}: {found} instead of {expected}", str(request))
    judge_counts(request, answer)


def judge_counts(request: Request, answer: Answer) -> None:
    """A pass gives one token and the accepted ones. An undrafted last token costs one more pass."""
    draft = answer.draft
    named, wanted = draft.get("strategy", "nothing"), request.strategy or "nothing" * (not request.draft)
    if wanted and named != wanted:
        broken(f"{named} drafts instead of {wanted}", str(request))
    if draft:
        most = request.draft.get("num_draft_tokens", "auto")
        n_behind = draft["forwards"] - draft["near_ties"] + draft["accepted"] - answer.usage["completion_tokens"]
        most_behind = MOST_DRAFTED if most == "auto" else most
        if not 0 <= draft["accepted"] <= draft["drafted"] or not 1 <= n_behind <= most_behind:
            broken(f"its statistics do not add up: {answer.usage}", str(request))


def judge_all(requests: Sequence[Request], answers: Sequence[Answer], right: Right) -> None:
    for request, answer in zip(requests, answers, strict=True):
        judge(request, answer, right(request))
