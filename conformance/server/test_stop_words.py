"""An answer ends where its text has a stop word, wherever tokens begin and end, and so do its usage and its cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from mlx_lm.utils import load_tokenizer

from conformance import FIXTURE
from conformance.doors.server.clients import Reference, load
from conformance.doors.server.process import FAST, TEXT, Server, serve
from conformance.doors.server.traffic import CODE, EDITED, EDITS, Body, Request, send
from conformance.subjects.prompts import fenced
from conformance.testing.faults.server import match_stop_words_as_tokens, stop_a_token_late

# They begin or end inside a token of the fixture, or have several, or are a part of one.
STOPS = ["+", "ount", "rows:\n", "lue >", "rint(c", "0\nf"]
PREDICTED: Body = {"prediction": {"type": "content", "content": EDITED}, "disable_adaptive_gate": True}
# Not drafted, and drafted. A request with a seed is served alone.
WAYS: list[tuple[Body, Body]] = list(product(({}, {"seed": 1}), ({}, PREDICTED)))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve("--prompt-cache-size", "200", env=FAST) as server:
        yield server


def check_stop_words(server: Server, right: Reference) -> None:
    """Whole and streamed answers, all at once. Then each text goes on, from the cache."""
    tokenizer = load_tokenizer(FIXTURE)
    firsts, expected = [], []
    for i, (stop, (fields, draft)) in enumerate(product(STOPS, WAYS)):
        prompt = f"<|user|>{i}. {EDITS[0]}\n{fenced(CODE)}<|end|><|assistant|>"
        whole = Request(TEXT, {"prompt": prompt, "max_tokens": 100, **fields}, draft, streamed=i % 3 == 0)
        firsts.append(replace(whole, body=whole.body | {"stop": ["zzz", stop]}))
        expected.append(right(whole).text)
    answers = load(server, firsts)
    assert sum(answer.draft.get("accepted", 0) for answer in answers) > 60
    for first, answer, whole_text in zip(firsts, answers, expected, strict=True):
        end = whole_text.index(first.body["stop"][1])
        assert (answer.text, answer.finish_reason) == (whole_text[:end], "stop"), f"another end of {first}"
        tokens = tokenizer.encode(whole_text, add_special_tokens=False)
        last = next(n for n in range(len(tokens)) if first.body["stop"][1] in tokenizer.decode(tokens[:n]))
        assert answer.usage["completion_tokens"] == last, f"another end of {first}"
        next_body = first.body | {"prompt": first.body["prompt"] + whole_text, "max_tokens": 1}
        counted = answer.usage["prompt_tokens"] + answer.usage["completion_tokens"]
        assert send(server, Request(TEXT, next_body)).cached_tokens == counted, f"another cache of {first}"


@pytest.mark.contract("C3")
def test_text_ends_at_stop_words(server: Server, right: Reference) -> None:
    check_stop_words(server, right)


@pytest.mark.planted
@pytest.mark.parametrize("broken", [match_stop_words_as_tokens, stop_a_token_late], indirect=True)
def test_another_end_is_found(broken: Server, right: Reference) -> None:
    with pytest.raises(AssertionError, match=r"another (end|cache)"):
        check_stop_words(broken, right)
