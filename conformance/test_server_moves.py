"""A request that is drafted goes on in the batch when others come, and its text tells nobody.

pytest conformance/test_server_moves.py

Each request moves after another number of blocks, also within a stop word, a character and what penalties look back on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from conformance.mixed import CODE, PENALTIES, Answer, Body, Request, judge, send
from conformance.server_faults import (
    FIRST_MOVE,
    LAST_MOVE,
    crowd,
    join_with_other_text,
    join_with_the_last_token,
    join_without_stop_words,
    join_without_the_prompt,
    planted,
)
from conformance.serving import CHAT, FAST, TEXT, Server, serve
from conformance.tiny_models import save
from conformance.workloads import chat, fenced

# At most two tokens a block, so that a move falls on each of the first tokens.
SLOWLY: Body = {"draft_type": "suffix", "num_draft_tokens": 1, "disable_adaptive_gate": True}
MOVES = LAST_MOVE - FIRST_MOVE + 1
EDIT = chat(f"Change `total` to `count`.\n{fenced(CODE)}")
# Each character takes several tokens.
SIGNS = chat("Repeat this.\n" + fenced("\u2603\U0001f600 = \u6f22\u5b57\u2603"))


@pytest.fixture(scope="module")
def alone() -> Iterator[Server]:
    with serve("--prompt-cache-size", "0", env=FAST) as server:
        yield server


@pytest.fixture
def moving(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    # A request starts from what the one before it left.
    with serve("--prompt-cache-size", "10", env=FAST | planted(request.param, tmp_path)) as server:
        yield server


def stop_words(tokenizer: TokenizerWrapper, answer: str) -> list[str]:
    """The first texts of three tokens in an answer which are these tokens as a stop word too."""
    tokens = tokenizer.encode(answer, add_special_tokens=False)
    found = [tokens[i : i + 3] for i in range(1, 2 * MOVES, 4)]
    return [
        word for part in found if tokenizer.encode(word := tokenizer.decode(part), add_special_tokens=False) == part
    ]


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Request:
    """Random weights, whose text tells what a trained model passes over, and a window that is full too soon to move."""
    path = save("gemma3_text", tmp_path_factory.mktemp("models"))
    return Request(TEXT, {"model": str(path), "prompt": "abcabcabc", "max_tokens": 24}, SLOWLY, "SuffixStrategy")


def request(messages: list[Body], **more: object) -> Request:
    return Request(CHAT, {"messages": messages, "max_tokens": 24, **more}, SLOWLY, "SuffixStrategy")


def check(alone: Server, moving: Server, one: Request, times: int = MOVES) -> list[Answer]:
    """Answers to a request that moves later each time."""
    right = send(alone, one.plain)
    answers = [send(moving, one) for _ in range(times)]
    for answer in answers:
        judge(one, answer, right)
    return answers


def check_stop_words(alone: Server, moving: Server, tokenizer: TokenizerWrapper) -> None:
    words = stop_words(tokenizer, send(alone, request(EDIT).plain).text)
    assert len(words) > 1
    for word in words:
        answers = check(alone, moving, request(EDIT, stop=word))
        assert {answer.finish_reason for answer in answers} == {"stop"}


def with_(plant: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("moving", [plant], indirect=True, ids=[plant.__name__])  # type: ignore[attr-defined]


@with_(crowd)
def test_a_request_that_moves(alone: Server, moving: Server, fixture: Any, sliding: Request) -> None:
    for one in (request(EDIT, **PENALTIES[0]), request(SIGNS)):
        for answer in check(alone, moving, one):
            assert "batched" in answer.draft["reason"]
            assert answer.draft["forwards"] < answer.usage["completion_tokens"] + 2
    assert any("batched" in (answer.draft["reason"] or "") for answer in check(alone, moving, sliding))
    check_stop_words(alone, moving, fixture[1])


@with_(join_with_the_last_token)
def test_a_cache_that_does_not_fit_is_found(alone: Server, moving: Server, sliding: Request) -> None:
    with pytest.raises(AssertionError):
        check(alone, moving, sliding)


def test_a_penalty_changes_the_text(alone: Server) -> None:
    """Or a request that moves would not show what its penalties look back on."""
    assert send(alone, request(EDIT, **PENALTIES[0]).plain).text != send(alone, request(EDIT).plain).text


@with_(join_without_the_prompt)
def test_a_forgotten_prompt_is_found(alone: Server, moving: Server) -> None:
    with pytest.raises(AssertionError):
        check(alone, moving, request(EDIT, **PENALTIES[0]))


@with_(join_without_stop_words)
def test_a_forgotten_stop_word_is_found(alone: Server, moving: Server, fixture: Any) -> None:
    with pytest.raises(AssertionError):
        check_stop_words(alone, moving, fixture[1])


@with_(join_with_other_text)
def test_a_lost_part_of_a_character_is_found(alone: Server, moving: Server) -> None:
    with pytest.raises(AssertionError):
        check(alone, moving, request(SIGNS))
