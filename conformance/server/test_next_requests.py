"""What the request after an answer finds cached, however the answer ended, and with what drafts."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest

from conformance.doors.server.process import Body, inside
from conformance.doors.server.requests import Right, judge_all, load
from conformance.oracle.findings import broken, not_shown
from conformance.server.traffic import CODE, EDITS
from conformance.subjects.prompts import fenced

OPTIONS = ("--draft-type", "none", "--prompt-cache-size", "200")
LENGTH = 60
SHORT: Body = {"max_tokens": 12, "stop": []}
# How answers end: after so many tokens, or at a stop word or its place in the text.
OF_RANDOM_MODELS: list[Any] = [("max_tokens", 5), ("max_tokens", 17), *(("stop", i) for i in (20, 21, 22))]
# They begin or end inside a token of the fixture, or have several, or are a part of one.
STOPS = ["+", "ount", "rows:\n", "lue >"]
OF_THE_FIXTURE: list[Any] = [
    ("max_tokens", 30),
    *(("stop", ["zzz", word]) for word in STOPS),
    ("stop", "append"),
    ("", ""),
]
ENDINGS = {"fixture": OF_THE_FIXTURE, "gemma3_text": OF_RANDOM_MODELS, "qwen3_next": OF_RANDOM_MODELS}


def prompt_of(model: str, i: int) -> str:
    """No two have a common prefix. All are longer than the sliding window of the model that has one."""
    if model == "fixture":
        return f"<|user|>{i}. {EDITS[0]}\n{fenced(CODE)}<|end|><|assistant|>"
    letters = string.ascii_letters[i:] + string.ascii_letters[:i]
    return letters[:20] + letters[3:9] + letters[:7]


def nearly(answer: str, every: int) -> Body:
    """Predict the answer with a wrong character at intervals, so that drafts are right up to many different places."""
    text = "".join("0" if i % every == 7 else c for i, c in enumerate(answer))
    prediction = {"type": "content", "content": text}
    return {"prediction": prediction, "disable_adaptive_gate": True, "num_draft_tokens": 6}


def word_at(answer: str, place: int) -> str:
    """A text that occurs at this place of the answer for the first time."""
    return next(answer[place:end] for end in range(place + 1, len(answer)) if answer.find(answer[place:end]) == place)


def ended(right: Right, path: str, model: str) -> list[tuple[Body, Body, str]]:
    """For each ending a request that has it, what drafts it, and the text without the end."""
    made = []
    for i, (field, value) in enumerate(ENDINGS[model]):
        body: Body = {"model": path, "prompt": prompt_of(model, i), "max_tokens": LENGTH, "stream": i % 3 == 0}
        whole = right(body).text
        if isinstance(value, int) and field == "stop":
            value = word_at(whole, value)
        draft = nearly(whole, 47 if model == "fixture" else 7 + 2 * i)
        made.append((body | ({field: value} if field else {}), draft, whole))
    return made


@pytest.mark.contract("C3")
@pytest.mark.contract("C11")
@pytest.mark.parametrize("how", ["alone", "batched"])
@pytest.mark.parametrize("model", ENDINGS)
def test_drafts_lower_nothing(right: Right, models: dict[str, str], model: str, how: str) -> None:
    """An answer and all that ends it are cached. Drafts never lower that, also for a request that leaves the prompt."""
    alone = {"seed": 1} if how == "alone" else {}
    cases = ended(right, models[model], model)
    # Some leave a prompt where it ends, others go on from a whole answer, and do it again with drafts.
    following: list[Body] = [
        first | alone | (draft if drafted else {}) | {"prompt": first["prompt"] + whole * n + "abc", **SHORT}
        for n, drafted in ((0, False), (1, False), (1, True))
        for first, draft, whole in cases
    ]
    found, accepted = [], 0
    for drafts in (False, True):
        with inside(*OPTIONS) as server:
            firsts = [first | alone | (draft if drafts else {}) for first, draft, _ in cases]
            judge_all(firsts, firsts_answers := load(server, firsts, len(firsts)), right)
            judge_all(following, answers := load(server, following, 1), right)
        accepted += sum(answer.draft.get("accepted", 0) for answer in firsts_answers)
        found.append([answer.cached_tokens for answer in answers])
        for first, answer, cached in zip(firsts, firsts_answers, found[-1][len(cases) :], strict=False):
            # What goes on from an answer that ended by itself has no end token there.
            ended_itself = answer.finish_reason == "stop" and "stop" not in first
            counted = answer.usage["prompt_tokens"] + answer.usage["completion_tokens"] - ended_itself
            if cached != counted:
                broken(f"{cached} tokens are cached instead of {counted}", json.dumps(first))
    for request, plain, drafted in zip(following, *found, strict=True):
        if drafted < plain:
            broken(f"{drafted} tokens are cached after drafts, and {plain} without", json.dumps(request))
    if accepted <= 20:
        not_shown(f"{accepted} drafted tokens are accepted")
