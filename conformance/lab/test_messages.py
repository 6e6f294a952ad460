"""Conversations of one's own become requests with the prompts and the answers that a server would have."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer

from conformance import FIXTURE
from conformance.lab.simulate import __main__ as simulate
from conformance.lab.simulate.messages import load
from conformance.lab.simulate.page import is_edit
from conformance.lab.simulate.run import TABLES, costs_of
from conformance.lab.streams import Request
from conformance.subjects.prompts import WORDS

ASKED: dict[str, Any] = {"role": "user", "content": "Where is Ada?"}
TOLD: dict[str, Any] = {"role": "assistant", "content": "I do not know."}
CALL: dict[str, Any] = {"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"name": "Ada"}'}}
CALLED: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
FOUND: dict[str, Any] = {"role": "tool", "tool_call_id": "1", "name": "find", "content": "Oslo"}
WHOLE = [{"role": "system", "content": "Help."}, ASKED, CALLED, FOUND, {"role": "assistant", "content": "In Oslo."}]
OBJECT = [{"function": CALL["function"] | {"arguments": {"name": "Ada"}}}]
PARTS = [{"type": "text", "text": "Where is "}, {"type": "text", "text": "Ada?"}]
# All say what WHOLE says.
FORMS = {
    "messages": {"messages": WHOLE},
    "the object of a call": {"messages": [*WHOLE[:2], CALLED | {"tool_calls": OBJECT}, *WHOLE[3:]]},
    "parts and nulls": {
        "messages": [WHOLE[0], ASKED | {"content": PARTS, "name": None, "tool_calls": None}, *WHOLE[2:]]
    },
    "a developer": {"messages": [WHOLE[0] | {"role": "developer"}, *WHOLE[1:]]},
    "a run": {"task_id": 0, "traj": WHOLE},
    "an end of a line in a string": {"id": "a\u2028b", "messages": WHOLE},
}
# A template with calls. What it asks for begins with the mark of a thought.
TEMPLATE = """\
{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\
{% if m.tool_calls is defined %}{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}\
{% endfor %}{% endif %}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}"""
# The prompts and the answers of WHOLE in that template.
START = "<|system|>Help.<|end|>\n<|user|>Where is Ada?<|end|>\n<|assistant|>"
TURNS = [
    (f"{START}<think>", 'find{"name": "Ada"}<|end|>'),
    (f'{START}find{{"name": "Ada"}}<|end|>\n<|tool|>Oslo<|end|>\n<|assistant|><think>', "In Oslo.<|end|>"),
]
# A line that is none, and why.
BAD: list[tuple[str, str]] = [
    ("{", "no JSON"),
    ("[" * 100_000, "no JSON"),
    ("7", 'no object with a list "messages" or "traj"'),
    ('{"messages": null}', 'no object with a list "messages" or "traj"'),
    ('{"messages": [{"content": "a"}]}', "a message has no role"),
    ('{"messages": ["a"]}', "a message has no role"),
    (json.dumps({"messages": [ASKED]}), "it has no answer"),
    (json.dumps({"messages": [TOLD]}), "it has no answer"),
    (json.dumps({"messages": [ASKED | {"content": [{"type": "image_url"}]}, TOLD]}), "Only 'text' content"),
    (json.dumps({"messages": [ASKED | {"content": 7}, TOLD]}), "not in OpenAI's form"),
    (json.dumps({"messages": [ASKED, TOLD | {"tool_calls": [{"id": "1"}]}]}), "not in OpenAI's form"),
    ('{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant"}]}', "not in OpenAI's form"),
]


def texts(folder: Path, *found: Any) -> list[tuple[str, str]]:
    tokenizer = load_tokenizer(folder)
    return [(tokenizer.decode(one.prompt), tokenizer.decode(one.answer)) for turn in found for one in turn.requests]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tokenizer of the fixture with another template."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FIXTURE / name, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return tmp_path


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "own.jsonl"
    path.write_text(
        "\n".join(one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in lines), "utf-8"
    )
    return path


@pytest.mark.parametrize("form", FORMS)
def test_forms(folder: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line, or a run of a list, gives the prompts and answers that the template makes of its turns."""
    for lines in ([FORMS[form]], [[FORMS[form]]], ["", FORMS[form], ""]):
        found = load(written(folder, *lines), folder)
        assert texts(folder, *found) == TURNS
        assert [turn.name for turn in found] == ["calls", "text"]
    assert not capsys.readouterr().err


def test_tools_are_in_the_prompt(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for t in tools %}{{ t.name }}{% endfor %}" + TEMPLATE)
    found = load(written(folder, {"messages": WHOLE, "tools": [{"name": "seek"}]}), folder)
    assert texts(folder, *found) == [(f"seek{prompt}", answer) for prompt, answer in TURNS]


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}", "it leaves out a call"),
        (f"{{{{ messages | length }}}}{TEMPLATE}", "changes what is before an answer"),
        ("{{ raise_exception('no tools here') }}", "no tools here"),
        ("{{ 1 + '' }}", "unsupported operand"),
        (None, "chat_template is not set"),
    ],
)
def test_a_plain_form(folder: Path, template: str | None, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the template cannot render a conversation, and that is told once."""
    (folder / "chat_template.jinja").unlink()
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    path = written(folder, {"messages": WHOLE}, {"messages": WHOLE})
    found = load(path, folder)
    first = "system:\nHelp.\n\nuser:\nWhere is Ada?\n\nassistant:\n"
    call = '{"name": "find", "arguments": {"name": "Ada"}}\n\n'
    expected = [(first, call), (f"{first}{call}tool:\nOslo\n\nassistant:\n", "In Oslo.\n\n")]
    assert texts(folder, *found) == 2 * expected
    told = capsys.readouterr().err
    assert told.startswith("own.jsonl: 2 of 2 conversations are not in the chat template but in a plain form (line 1: ")
    assert why in told
    assert told.count("\n") == 1


def test_bad_lines_are_named_and_skipped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line, _ in BAD]
    found = load(written(folder, {"messages": WHOLE}, *lines, {"messages": WHOLE}), folder)
    assert texts(folder, *found) == 2 * TURNS
    told = capsys.readouterr().err.splitlines()
    assert len(told) == len(BAD)
    for n, (one, (_, why)) in enumerate(zip(told, BAD, strict=True), 2):
        assert one.startswith(f"own.jsonl, line {n}: "), one
        assert why in one


@pytest.mark.parametrize("shift", [0, 1])
def test_an_edit_is_long_and_mostly_copied(shift: int) -> None:
    prompt, other = [*range(100)], [*range(500, 600)]
    assert is_edit(Request(prompt, [*prompt[: 31 - shift], *other[: 29 + shift]])) == (not shift)
    assert is_edit(Request(prompt, prompt[: 60 - shift])) == (not shift)
    pieces = [token for i in range(4) for token in (*prompt[20 * i : 20 * i + 16 - shift], 999)]
    assert is_edit(Request(prompt, pieces)) == (not shift)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What the command says to its arguments, and its exit code."""

    def run(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["simulate", *map(str, arguments)])
        code = 0
        try:
            simulate.main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run


def cells(page: str, name: str) -> list[list[float]]:
    """The numbers of a row in each table."""
    lines = [
        line.split(" | ")[1:] for line in page.replace(" |\n", "\n").splitlines() if line.startswith(f"| {name} |")
    ]
    return [[float(cell) for cell in line if cell] for line in lines]


def test_the_tables_of_own_conversations(folder: Path, told: Any) -> None:
    """Turns are counted, and priced by the given costs. In the second table a request copies from those before it."""
    costs = folder / "probe.json"
    costs.write_text(json.dumps({"rows": [{"length": 1, "cost": 1.0}, {"length": 64, "cost": 1.0}]}))
    text = " ".join(random.Random(1).choices(WORDS, k=60))
    answer = {"role": "assistant", "content": text}
    edit = {"messages": [{"role": "user", "content": text}, answer]}
    path = written(folder, *[{"messages": [ASKED, answer]}] * 2, edit, {"messages": [ASKED, CALLED]})
    code, page, err = told("--messages", path, "--tokenizer", folder, "--costs", costs)
    assert (code, err) == (0, "")
    assert page.count("|  | turns | tokens | CPU | M4 Pro | GPU | probe.json |\n") == 2
    found = {name: cells(page, name) for name in ("text", "calls", "edits among them", "mean of text and calls")}
    first, *_, call = (len(turn.requests[0].answer) for turn in load(path, folder))
    counted = [found[name][0][:2] for name in ("text", "calls", "edits among them")]
    assert counted == [[3, 3 * first], [1, call], [1, first]]
    alone, shared = found["text"]
    assert all(b > a for a, b in zip(alone[2:], shared[2:], strict=True))
    # The last device takes as long for 64 tokens as for one.
    edits = found["edits among them"][0][2:]
    assert edits[3] > edits[2] > edits[1] > edits[0] > 1.5
    for mean, *both in zip(found["mean of text and calls"][0], alone[2:], found["calls"][0][2:], strict=True):
        assert mean == pytest.approx(geometric_mean(both), abs=0.01)
    assert "| edit, 8 |" in told("--messages", path, "--tokenizer", folder, "--others")[1]
    short = told("--messages", written(folder, {"messages": WHOLE}), "--tokenizer", folder, "--costs", "m4")[1]
    assert short.count("| worst of 60 tokens or more |  |  | — |") == 2


def test_costs_of_a_name_and_of_a_file(tmp_path: Path, told: Any) -> None:
    assert costs_of("m4") == ("m4", TABLES["m4"])
    path = tmp_path / "mine.json"
    path.write_text('{"rows": [{"length": 1, "cost": 1.0}, {"length": 2, "cost": 1.4}, {"length": 3, "cost": 1.3}]}')
    name, costs = costs_of(str(path))
    assert (name, costs.lengths, costs.costs) == ("mine.json", [1, 2, 3], [1.0, 1.4, 1.4])
    for wrong in (
        "",
        "[]",
        "{}",
        '{"rows": []}',
        '{"rows": [{"length": 1}]}',
        '{"rows": [{"length": 2, "cost": 1.0}]}',
    ):
        path.write_text(wrong)
        code, _, err = told("--costs", path)
        assert code == 2
        assert f"{path} is none of cpu, m4, gpu, and no file that `python -m conformance probe --json` wrote" in err
    assert told("--costs", "m5")[0] == 2


def test_wrong_use(folder: Path, told: Any) -> None:
    path, empty, broken = written(folder, {"messages": WHOLE}), folder / "empty", folder / "broken"
    own = ("--messages", path, "--tokenizer", folder)
    assert "--messages and --tokenizer go together" in told(*own[:2])[2]
    assert "--messages and --tokenizer go together" in told(*own[2:])[2]
    assert "not allowed with argument" in told(*own, "--sampled")[2]
    assert "not allowed with argument" in told(*own, "--words")[2]
    empty.mkdir()
    broken.write_text('[{"traj": [')
    (folder / "bytes").write_bytes(b"\xff\xfe")
    (folder / "none").touch()
    for file, where, why in (
        (folder / "missing", folder, "No such file"),
        (folder / "bytes", folder, "can't decode byte"),
        (folder / "none", folder, "it has no turn to decode"),
        (broken, folder, "Expecting value"),
        (path, folder / "missing", "the tokenizer is no folder here"),
        (path, empty, "no tokenizer can be loaded"),
    ):
        code, page, err = told("--messages", file, "--tokenizer", where)
        assert (code, page, err.count("\n")) == (2, "", 1), err
        assert err.startswith(f"{file} with the tokenizer {where} cannot be used: ")
        assert why in err
