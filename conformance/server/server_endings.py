"""Check each way a drafted answer can end, and the next request, which reuses its prompt cache."""

from __future__ import annotations

import string
from contextlib import closing
from itertools import islice
from pathlib import Path

from conformance.doors.server.clients import Reference, load
from conformance.doors.server.process import TEXT, Server
from conformance.doors.server.traffic import CODE, EDITS, Body, Request, follow, send
from conformance.subjects.prompts import fenced

LENGTH = 60
NEXT = 12
Ending = tuple[str, int | str]
# How answers end, and the number of tokens or pieces before that, or the stop word or its place in the text.
OF_RANDOM_MODELS: list[Ending] = [("length", 5), ("length", 17), *(("stop", i) for i in (20, 21, 22)), ("gone", 2)]
OF_THE_FIXTURE: list[Ending] = [
    ("length", 30),
    *(("stop", word) for word in ("rows", "limit", "append")),
    ("gone", 6),
    ("end", 0),
]
ENDINGS = {"fixture": OF_THE_FIXTURE, "gemma3_text": OF_RANDOM_MODELS, "qwen3_next": OF_RANDOM_MODELS}


def _prompt(model: str, i: int) -> str:
    """No two have a common prefix. All are longer than the sliding window of the model that has one."""
    if model == "fixture":
        return f"<|user|>{i}. {EDITS[i % len(EDITS)]}\n{fenced(CODE)}<|end|><|assistant|>"
    letters = string.ascii_letters[i:] + string.ascii_letters[:i]
    return letters[:20] + letters[3:9] + letters[:7]


def _nearly(answer: str, every: int) -> str:
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


def check_the_next_request(server: Server, right: Reference, model: str, path: Path) -> None:
    """Send drafted requests in one batch, one for each ending. Then send the next ones, with and without drafts."""
    going_on, firsts = [], []
    for i, (ending, place) in enumerate(ENDINGS[model]):
        body: Body = {"model": str(path), "prompt": _prompt(model, i), "max_tokens": LENGTH}
        whole = right(Request(TEXT, body))
        draft: Body = {
            "prediction": {"type": "content", "content": _nearly(whole.text, 47 if model == "fixture" else 7 + 2 * i)},
            "disable_adaptive_gate": True,
            "num_draft_tokens": 6,
        }
        next_body = body | {"prompt": f"{body['prompt']}{whole.text}abc", "max_tokens": NEXT}
        going_on.append((ending != "gone", whole, Request(TEXT, next_body, draft)))
        if ending == "gone":
            with closing(follow(server, TEXT, body | draft)) as pieces:
                list(islice(pieces, int(place)))
        else:
            stop = _stop_word(whole.text, place) if ending == "stop" else None
            fields: Body = {"max_tokens": place} if ending == "length" else {"stop": stop}
            firsts.append(Request(TEXT, body | fields, draft, "EditStrategy"))
    for first, answer in zip(firsts, answers := load(server, firsts, len(firsts)), strict=True):
        reason = "length" if first.body["max_tokens"] < LENGTH else "stop"
        assert (answer.text, answer.finish_reason) == (right(first).text, reason), f"another text to {first}"
    assert sum(answer.draft["accepted"] for answer in answers) > 20
    # It is served alone. Its answer shows that the abandoned requests have ended.
    send(server, Request(TEXT, {"model": str(path), "prompt": ".", "max_tokens": 1, "seed": 1}))
    # A request that was stopped for want of a client leaves nothing, one that ended before that was seen does.
    for kept, whole, go_on in going_on:
        for is_kept, request in ((kept, go_on.plain), (True, go_on)):
            answer = send(server, request)
            reused = answer.cached_tokens > whole.usage["prompt_tokens"] or not is_kept
            assert reused, f"nothing reused for {request}"
            assert answer.text == right(request).text, f"another text to {request}"
