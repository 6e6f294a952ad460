"""Check each way a drafted answer can end, and the next request, which reuses its prompt cache."""

from __future__ import annotations

import string
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path

from conformance.testing.server.process import TEXT, Server
from conformance.testing.server.traffic import CODE, EDITS, Answer, Body, Request, follow, send
from conformance.testing.texts.workloads import fenced

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


def check_the_next_request(server: Server, right: Callable[[Request], Answer], model: str, path: Path) -> None:
    """Send a drafted request for each ending. Then send the next request, with and without drafts."""
    for i, (ending, place) in enumerate(ENDINGS[model]):
        case = f"{model}-{ending}-{place}"
        body: Body = {"model": str(path), "prompt": _prompt(model, i), "max_tokens": LENGTH}
        whole = right(Request(TEXT, body))
        draft: Body = {
            "prediction": {"type": "content", "content": nearly(whole.text, 47 if model == "fixture" else 11)},
            "disable_adaptive_gate": True,
            "num_draft_tokens": 6,
        }
        if ending == "gone":
            with closing(follow(server, TEXT, body | draft)) as pieces:
                list(islice(pieces, int(place)))
            # This request is served alone. Its answer shows that the abandoned request has ended.
            send(server, Request(TEXT, {"model": str(path), "prompt": ".", "max_tokens": 1, "seed": 1}))
        else:
            stop = _stop_word(whole.text, place) if ending == "stop" else None
            fields: Body = {"max_tokens": place} if ending == "length" else {"stop": stop}
            answer = send(server, first := Request(TEXT, body | fields, draft))
            reason = "length" if ending == "length" else "stop"
            assert (answer.text, answer.finish_reason) == (right(first).text, reason), f"another text in {case}"
        go_on = Request(TEXT, body | {"prompt": f"{body['prompt']}{whole.text}abc", "max_tokens": NEXT}, draft)
        # A request that was stopped for want of a client leaves nothing, one that ended before that was seen does.
        kept = ending != "gone"
        for request in (go_on.plain, go_on):
            answer = send(server, request)
            assert answer.cached_tokens > whole.usage["prompt_tokens"] or not kept, f"nothing reused after {case}"
            assert answer.text == right(request).text, f"another text after {case}"
            kept = True
