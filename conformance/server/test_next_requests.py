"""What the request after an answer finds cached, however the answer ended, and with what drafts."""

from __future__ import annotations

import string
from contextlib import closing
from itertools import islice, product

import pytest

from conformance.doors.server.process import TEXT, Body, Inside, inside
from conformance.doors.server.requests import Request, Right, judge, judge_all, load, send
from conformance.oracle.findings import broken, not_shown
from conformance.server.traffic import CODE, EDITS, PREDICTED
from conformance.subjects.prompts import chat, fenced

OPTIONS = ("--prompt-cache-size", "200")
LENGTH, NEXT = 60, 12
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


def prompt_of(model: str, i: int) -> str:
    """No two have a common prefix. All are longer than the sliding window of the model that has one."""
    if model == "fixture":
        return f"<|user|>{i}. {EDITS[i % len(EDITS)]}\n{fenced(CODE)}<|end|><|assistant|>"
    letters = string.ascii_letters[i:] + string.ascii_letters[:i]
    return letters[:20] + letters[3:9] + letters[:7]


def nearly(answer: str, every: int) -> Body:
    """Predict the answer with a wrong character at intervals, so that drafts are right up to many different places."""
    text = "".join("0" if i % every == 7 else c for i, c in enumerate(answer))
    prediction = {"type": "content", "content": text}
    return {"prediction": prediction, "disable_adaptive_gate": True, "num_draft_tokens": 6}


def stop_word(answer: str, place: int | str) -> str:
    """A text that occurs at this place of the answer for the first time."""
    if isinstance(place, str):
        return place
    return next(answer[place:end] for end in range(place + 1, len(answer)) if answer.find(answer[place:end]) == place)


def ended(right: Right, models: dict[str, str], model: str) -> list[tuple[Ending, Request, Request]]:
    """For each ending a drafted request that has it, and one that goes on from its whole answer."""
    made = []
    for i, (ending, place) in enumerate(ENDINGS[model]):
        body: Body = {"model": models[model], "prompt": prompt_of(model, i), "max_tokens": LENGTH}
        whole = right(Request(TEXT, body)).text
        draft = nearly(whole, 47 if model == "fixture" else 7 + 2 * i)
        end: Body = {"max_tokens": place} if ending == "length" else {}
        end |= {"stop": stop_word(whole, place)} if ending == "stop" else {}
        going_on = body | {"prompt": f"{body['prompt']}{whole}abc", "max_tokens": NEXT}
        first = Request(TEXT, body | end, draft, "EditStrategy")
        made.append(((ending, place), first, Request(TEXT, going_on, draft, "EditStrategy")))
    return made


@pytest.mark.parametrize("model", ENDINGS)
def test_after_an_ending(server: Inside, right: Right, models: dict[str, str], model: str) -> None:
    """Drafted requests in one batch, one for each ending. Then the next ones, with and without drafts."""
    cases = ended(right, models, model)
    for (ending, place), first, _ in cases:
        if ending == "gone":
            with closing(server.pieces(first.body | first.draft, TEXT)) as pieces:
                list(islice(pieces, int(place)))
    firsts = [first for (ending, _), first, _ in cases if ending != "gone"]
    answers = load(server, firsts, len(firsts))
    for first, answer in zip(firsts, answers, strict=True):
        judge(first, answer, right(first))
    if sum(answer.draft["accepted"] for answer in answers) <= 20:
        not_shown("hardly a draft is right")
    # It is served alone. Its answer shows that the abandoned requests have ended.
    send(server, Request(TEXT, {"model": models[model], "prompt": ".", "max_tokens": 1, "seed": 1}))
    for (ending, _), first, going_on in cases:
        # A request that was stopped for want of a client leaves nothing, one that ended before that was seen does.
        for is_kept, request in ((ending != "gone", going_on.but(draft={})), (True, going_on)):
            answer = send(server, request)
            judge(request, answer, right(request))
            if is_kept and answer.cached_tokens <= right(first).usage["prompt_tokens"]:
                broken(f"{answer.cached_tokens} tokens are reused after an end by {ending}", str(request))


@pytest.mark.contract("C11")
@pytest.mark.parametrize("how", ["alone", "batched"])
@pytest.mark.parametrize("model", ENDINGS)
def test_drafts_lower_nothing(right: Right, models: dict[str, str], model: str, how: str) -> None:
    """A drafted request never lowers what the next one finds cached, also where that leaves its prompt."""
    alone = {"seed": 1} if how == "alone" else {}
    firsts = [first for (ending, _), first, _ in ended(right, models, model) if ending != "gone"]
    # The first ones leave their prompts where it ends, and are cached after it.
    following = [
        first.but(prompt=first.body["prompt"] + more, max_tokens=4, draft={}, **alone)
        for answered in (False, True)
        for first in firsts
        for more in [right(first).text * answered + "abc"]
    ]
    found, accepted = [], 0
    for drafts in (False, True):
        with inside(*OPTIONS) as server:
            asked = [first.but(draft=first.draft if drafts else {}, **alone) for first in firsts]
            accepted += sum(answer.draft.get("accepted", 0) for answer in load(server, asked, len(asked)))
            answers = load(server, following, 1)
        judge_all(following, answers, right)
        found.append([answer.cached_tokens for answer in answers])
    for request, plain, drafted in zip(following, *found, strict=True):
        if drafted < plain:
            broken(f"{drafted} tokens are cached after a drafted request, and {plain} after a plain one", str(request))
    if not accepted or not sum(found[0]):
        not_shown(f"{accepted} drafted tokens are accepted, {sum(found[0])} are cached")


def test_after_a_system_prompt(server: Inside, right: Right, models: dict[str, str]) -> None:
    """A hybrid model cannot trim back to the end of a system prompt, so its state there is kept."""
    system = {"role": "system", "content": "abcdefghijklmnopqrstuvwxyz"}
    for question, cached in (("ABC", 0), ("XYZ", 27)):
        body: Body = {"model": models["qwen3_next"], "messages": [system, *chat(question)], "max_tokens": 12}
        request = Request("/v1/chat/completions", body)
        request = request.but(draft={"prediction": nearly(right(request).text, 47)["prediction"]})
        answer = send(server, request)
        judge(request, answer, right(request))
        assert answer.cached_tokens == cached, f"{answer.cached_tokens} tokens instead of {cached} are cached"


# They begin or end inside a token of the fixture, or have several, or are a part of one.
STOPS = ["+", "ount", "rows:\n", "lue >", "rint(c", "0\nf"]
# Not drafted, and drafted. A request with a seed is served alone.
WAYS: list[tuple[Body, Body]] = list(product(({}, {"seed": 1}), ({}, PREDICTED)))


@pytest.mark.contract("C3")
def test_text_ends_at_stop_words(server: Inside, right: Right) -> None:
    """Wherever tokens begin and end, whole and streamed, all at once. Then each text goes on, from the cache."""
    firsts = []
    for i, (stop, (fields, draft)) in enumerate(product(STOPS, WAYS)):
        prompt = f"<|user|>{i}. stop {EDITS[0]}\n{fenced(CODE)}<|end|><|assistant|>"
        body: Body = {"prompt": prompt, "max_tokens": 100, "stop": ["zzz", stop], **fields}
        firsts.append(Request(TEXT, body, draft, streamed=i % 3 == 0))
    answers = load(server, firsts)
    assert sum(answer.draft.get("accepted", 0) for answer in answers) > 60
    for first, answer in zip(firsts, answers, strict=True):
        judge(first, answer, right(first))
        whole = right(Request(TEXT, {name: value for name, value in first.body.items() if name != "stop"}))
        answer_and_more = first.but(prompt=first.body["prompt"] + whole.text, max_tokens=1, draft={})
        counted = answer.usage["prompt_tokens"] + answer.usage["completion_tokens"]
        if (found := send(server, answer_and_more).cached_tokens) != counted:
            broken(f"{found} tokens are cached instead of {counted}", str(first))
