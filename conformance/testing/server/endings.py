"""Check each way a drafted answer can end, and the next request, which reuses its prompt cache."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from conformance.testing.server.process import TEXT, Server
from conformance.testing.server.traffic import CODE, EDITS, Answer, Body, Request, send
from conformance.testing.texts.workloads import fenced

LENGTH = 60
NEXT = 12


class Case(NamedTuple):
    model: str
    ending: str
    # The number of characters, tokens or events before the end, or the stop word.
    place: int | str
    prompt: str

    def __str__(self) -> str:
        return f"{self.model}-{self.ending}-{self.place}"


def _random_text(i: int) -> str:
    """Texts without common prefixes. All are longer than the sliding window of the model that has one."""
    letters = string.ascii_letters[i:] + string.ascii_letters[:i]
    return letters[:20] + letters[3:9] + letters[:7]


def _edit(i: int) -> str:
    return f"<|user|>{i}. {EDITS[i % len(EDITS)]}\n{fenced(CODE)}<|end|><|assistant|>"


# For the other models the stop words are found at three places in a row.
ENDINGS: list[tuple[str, int | str]] = [
    ("length", 5),
    ("length", 17),
    *(("stop", i) for i in (20, 21, 22)),
    ("gone", 2),
]
FIXTURE_ENDINGS: list[tuple[str, int | str]] = [
    ("length", 30),
    *(("stop", word) for word in ("rows", "limit", "append")),
    ("gone", 6),
    ("end", 0),
]


def _cases() -> list[Case]:
    kinds = [(model, *ending) for model in ("gemma3_text", "qwen3_next") for ending in ENDINGS]
    kinds += [("fixture", *ending) for ending in FIXTURE_ENDINGS]
    return [
        Case(model, ending, place, (_edit if model == "fixture" else _random_text)(i))
        for i, (model, ending, place) in enumerate(kinds)
    ]


CASES = _cases()


def nearly(answer: str, every: int) -> str:
    """The answer with a wrong character at intervals, so that drafts are right up to many different places."""
    return "".join("0" if i % every == 7 else c for i, c in enumerate(answer))


def _stop_word(answer: str, place: int | str) -> str:
    """A text that occurs at this place of the answer for the first time."""
    if isinstance(place, str):
        return place
    for end in range(place + 1, len(answer)):
        if answer.find(answer[place:end]) == place:
            return answer[place:end]
    raise AssertionError(f"nothing new at {place} of {answer!r}")


def _ending(case: Case, answer: str) -> tuple[Body, int | None, str | None]:
    """The end of an answer: fields of the request, the events after which the client leaves, and the finish reason."""
    if case.ending == "length":
        return {"max_tokens": case.place}, None, "length"
    if case.ending == "stop":
        return {"stop": _stop_word(answer, case.place)}, None, "stop"
    if case.ending == "gone":
        return {}, int(case.place), None
    return {}, None, "stop"


def check_the_next_request(server: Server, right: Callable[[Request], Answer], model: Path, case: Case) -> None:
    """Send a drafted request that ends as the case says. Then send the next request, with and without drafts."""
    body: Body = {"model": str(model), "prompt": case.prompt, "max_tokens": LENGTH}
    whole = right(Request(TEXT, body))
    fields, leave_after, reason = _ending(case, whole.text)
    draft: Body = {
        "prediction": {"type": "content", "content": nearly(whole.text, 47 if case.model == "fixture" else 11)},
        "disable_adaptive_gate": True,
        "num_draft_tokens": 6,
    }
    first = Request(TEXT, body | fields, draft, "EditStrategy", leave_after is not None, leave_after)
    answer = send(server, first)
    assert (answer.text, answer.finish_reason) == (right(first).text, reason) or leave_after, f"another text in {case}"
    if leave_after is not None:
        # This request is served alone. Its answer shows that the abandoned request has ended.
        send(server, Request(TEXT, {"model": str(model), "prompt": ".", "max_tokens": 1, "seed": 1}))
    go_on = Request(TEXT, body | {"prompt": case.prompt + whole.text + "abc", "max_tokens": NEXT}, draft)
    # A request that was stopped for want of a client leaves nothing, one that ended before that was seen does.
    kept = leave_after is None
    for request in (go_on.plain, go_on):
        next_answer = send(server, request)
        reused, kept = next_answer.cached_tokens > whole.usage["prompt_tokens"] or not kept, True
        assert reused, f"nothing reused after {case}"
        assert next_answer.text == right(request).text, f"another text after {case}"
