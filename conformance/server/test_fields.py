"""The fields of requests: a wrong one is refused by its name, and what is told about drafts is true."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from mlx_lm import server as module
from mlx_lm.draft import serving

from conformance.doors.server.process import CHAT, TEXT, Body, Inside
from conformance.doors.server.requests import Request, Right, judge, send
from conformance.oracle.findings import broken
from conformance.server.fields import FIELDS, NUMBER, ONLY
from conformance.server.traffic import ASK, GATE_OFF, SHORT

BODIES = {CHAT: SHORT.body, TEXT: {"prompt": "a", "max_tokens": 4}}


def constants(*nodes: ast.AST) -> Iterator[str]:
    for node in (inner for one in nodes for inner in ast.walk(one)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def read_from_bodies(source: str) -> Iterator[str]:
    """The names that are looked up in the body of a request, also those of a loop over names."""
    tree = ast.parse(source)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[key, *_]):
                pass
            case ast.Subscript(value=owner, slice=key) | ast.Compare(left=key, comparators=[owner]):
                pass
            case _:
                continue
        if ast.unparse(owner) not in ("body", "self.body"):
            continue
        if isinstance(key, ast.Name):
            yield from constants(*(loop.iter for loop in loops if node in ast.walk(loop)))
        else:
            yield from constants(key)


def test_each_field_has_a_row() -> None:
    read = {*read_from_bodies(Path(module.__file__).read_text("utf-8")), *serving.OPTIONS}
    for field in sorted(read - FIELDS.keys()):
        broken(f"mlx_lm.server reads the field {field} of requests, which has no row in conformance/server/fields.py")
    for field in sorted(FIELDS.keys() - read):
        broken(f"conformance/server/fields.py has a row for {field}, which mlx_lm.server does not read")


@pytest.mark.contract("C6")
def test_wrong_fields_are_named(server: Inside) -> None:
    """Each is refused by its name, a number also by its value, and a seed draws as before."""
    seeded = Request(TEXT, {"prompt": "a", "max_tokens": 8, "temperature": 1, "top_k": 50, "top_p": 0.9, "seed": 7})
    text = send(server, seeded).text
    for field, (_, wrong) in FIELDS.items():
        for path, value in product([ONLY[field]] if field in ONLY else [CHAT, TEXT], wrong):
            answer = send(server, Request(path, BODIES[path] | {"draft_type": "auto", field: value}))
            number = value["1"] if field == "logit_bias" else value
            named = str(number) if any(number is one for one in NUMBER) else field
            if answer.status != 400 or field not in answer.error or named not in answer.error:
                broken(f"{field} = {str(value)[:60]} is answered with {answer.status} {answer.error!r}")
    assert send(server, seeded).text == text, "the seed 7 draws otherwise afterwards"
    assert server.healthy(), "the server is no longer healthy"


@pytest.mark.contract("C6")
@pytest.mark.parametrize("seed", [{}, {"seed": 1}], ids=["batched", "alone"])
def test_a_request_without_drafts_says_why(server: Inside, right: Right, seed: Body) -> None:
    request = SHORT.but(**seed)
    answer = send(server, request.but(draft={"draft_type": "auto", "num_draft_tokens": 0}))
    assert answer.text == right(request).text
    assert (answer.draft["drafted"], answer.draft["reason"]) == (0, "num_draft_tokens is 0"), answer


@pytest.mark.contract("C6")
@pytest.mark.parametrize("streamed", [False, True])
def test_the_line_in_the_log(server: Inside, right: Right, streamed: bool) -> None:
    def lines() -> list[str]:
        return re.findall(r"Drafting for chatcmpl-[0-9a-f-]{36}: (.*)", server.log)

    before = lines()
    send(server, ASK)
    assert lines() == before, "a request without drafts is told to draft"
    request = Request(ASK.path, ASK.body, GATE_OFF, streamed=streamed)
    judge(request, answer := send(server, request), right(request))
    draft = answer.draft
    rate = answer.usage["completion_tokens"] / draft["forwards"]
    counts = f"{draft['drafted']} tokens drafted, {draft['accepted']} accepted, {rate:.2f} tokens-per-forward"
    assert lines()[len(before) :] == [f"SuffixStrategy, {counts}"]
