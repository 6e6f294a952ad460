"""Requests to a server, its answers, and the right ones: what the library decodes, each alone and without a cache.

A request is its body.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import mlx.core as mx
import mlx_lm
import requests
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from conformance import FIXTURE
from conformance.doors.server.process import Body, Client, text_of
from conformance.oracle.findings import broken

# The longest draft of "auto".
MOST_DRAFTED = 15
KINDS = ("repetition", "presence", "frequency")
PENALTIES = [f"{kind}_{what}" for kind in KINDS for what in ("penalty", "context_size")]
# The fields that a text depends on. A seed is one of them where the server samples.
READ = ["model", "messages", "tools", "prompt", "max_tokens", "stop", "temperature", "top_p", "logit_bias", *PENALTIES]
# What drafts for each draft_type. A prediction alone is drafted from as by auto.
STRATEGIES = {
    "none": "nothing",
    "auto": "EditStrategy",
    "suffix": "SuffixStrategy",
    "ngram-simple": "NgramSimpleStrategy",
    "ngram-mod": "NgramModStrategy",
    "model": "ModelDraftStrategy",
}


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

    @property
    def facts(self) -> dict[str, Any]:
        """What an answer has to have as the right one has it."""
        tokens = {"tokens": [token for token, _ in self.logprobs]} if self.logprobs else {}
        ended = {"text": self.text, "finish reason": self.finish_reason}
        return {**self.counts, **ended, **tokens}

    @property
    def counts(self) -> dict[str, int]:
        """What the usage counts, whole answer or stream."""
        return {f"{kind} tokens": self.usage[f"{kind}_tokens"] for kind in ("prompt", "completion", "total")}


def send(client: Client, body: Body) -> Answer:
    if body.get("stream") is True:
        status, said = 500, list(client.stream(body | {"stream_options": {"include_usage": True}}))
    else:
        response = client.post(body)
        status, said = response.status_code, [response.json()]
    if (error := said[-1].get("error")) is not None:
        # The errors of stock releases are strings.
        known: Body = error if isinstance(error, dict) else {"message": str(error)}
        return Answer(known.get("code", status), error=known["message"])
    choices = [choice for event in said for choice in event["choices"]]
    (reason,) = (choice["finish_reason"] for choice in choices if choice["finish_reason"])
    logprobs = [one for choice in choices for one in (choice.get("logprobs") or {}).get("content", [])]
    probable = tuple((one["id"], one["logprob"]) for one in logprobs)
    return Answer(200, "".join(map(text_of, said)), reason, said[-1]["usage"], "", probable)


def load(server: Client, bodies: Sequence[Body], clients: int = 8) -> list[Answer]:
    """Send requests from several clients at the same time."""
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda body: send(server, body), bodies))


def asked(server: Client, body: Body) -> Answer:
    """The answer of any tree. If there is none, that is what is found."""
    try:
        answer = send(server, body)
    except requests.RequestException as error:
        broken(f"the server gives no answer: {type(error).__name__}", json.dumps(body))
    if answer.status != 200:
        broken(f"the server answers {answer.status}: {answer.error[:200]}", json.dumps(body))
    return answer


@cache
def loaded(path: str) -> Any:
    return mlx_lm.load(path)


class Right:
    """The right answers. Each is decoded once, with options of generate_step that all have."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.known: dict[str, Answer] = {}

    def __call__(self, body: Body) -> Answer:
        names = [*READ, "seed"] if "temperature" in body else READ
        read = {name: body[name] for name in names if name in body}
        key = json.dumps(read)
        if key not in self.known:
            self.known[key] = self.decode(read)
        return self.known[key]

    def decode(self, body: Body) -> Answer:
        model, tokenizer = loaded(str(body.get("model", FIXTURE)))
        if "messages" in body:
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
        usage["total_tokens"] = sum(usage.values())
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


def judge(body: Body, answer: Answer, right: Answer, noise: float = 0.0, by: str = "none") -> None:
    """Compare an answer with the right one. Of one that is sampled without a seed only the counts are known.

    Args:
        by: The draft_type of the server, or "model". With "auto" it has a memory.
    """
    if answer.status != 200:
        broken(f"the answer is {answer.status} {answer.error!r}", json.dumps(body))
    found, wanted = answer.facts, right.facts
    for what in ["prompt tokens"] if "temperature" in body and "seed" not in body else found:
        if found[what] != wanted[what]:
            broken(f"{what}: {found[what]!r} instead of {wanted[what]!r}", json.dumps(body))
    for i, ((_, seen), (_, expected)) in enumerate(zip(answer.logprobs, right.logprobs, strict=False)):
        if abs(seen - expected) > noise:
            broken(f"log probability of token {i}: {seen} instead of {expected}", json.dumps(body))
    judge_counts(body, answer, by)


def strategy_of(body: Body, by: str = "none") -> str:
    """What has to draft for a request."""
    kind = body.get("draft_type", "auto" if by == "none" and "prediction" in body else by)
    if kind == "auto" and "ngram_size" in body:
        kind = "ngram-simple"
    return "MemoryStrategy" if kind == by == "auto" else STRATEGIES[kind]


def judge_counts(body: Body, answer: Answer, by: str) -> None:
    """A pass gives one token and the accepted ones. An undrafted last token costs one more pass."""
    draft = answer.draft
    if (named := draft.get("strategy", "nothing")) != (wanted := strategy_of(body, by)):
        broken(f"{named} drafts instead of {wanted}", json.dumps(body))
    if draft:
        most = body.get("num_draft_tokens", "auto")
        n_behind = draft["forwards"] - draft["near_ties"] + draft["accepted"] - answer.usage["completion_tokens"]
        most_behind = MOST_DRAFTED if most == "auto" else most
        if not 0 <= draft["accepted"] <= draft["drafted"] or not 1 <= n_behind <= most_behind:
            broken(f"its statistics do not add up: {answer.usage}", json.dumps(body))


def judge_all(bodies: Sequence[Body], answers: Sequence[Answer], right: Right, by: str = "none") -> None:
    for body, answer in zip(bodies, answers, strict=True):
        judge(body, answer, right(body), by=by)
