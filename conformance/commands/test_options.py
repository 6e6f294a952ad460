"""Every option of drafting and of decoding reaches the code that uses it, and so does every field of a request.

The options are read from the parser of each command, the places that they must reach from options.toml. The commands
run as for a user, up to what generates tokens. Options that contradict each other are an error before that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.draft import NgramModTable, serving
from mlx_lm.draft.arguments import add_draft_arguments

from conformance import FIXTURE
from conformance.adapters import by_name, module_of, options_of
from conformance.doors.commands import COMMANDS, Record, run
from conformance.oracle.findings import broken

pytestmark = pytest.mark.contract("C6")
TABLES = Path(__file__).with_name("options.toml")
ROWS: dict[str, dict[str, Any]] = tomllib.loads(TABLES.read_text("utf-8"))
CONTRADICTIONS, REQUEST, ELSEWHERE = ROWS.pop("contradictions"), ROWS.pop("request"), ROWS.pop("elsewhere")
# Commands without text generation may have options of the same name with another meaning.
SHARED = re.compile("draft|ngram|lookup|gate")


def rows_of(command: str) -> dict[str, list[Any]]:
    """What has to arrive of each option that a command has, or that a table gives it."""
    rows: dict[str, list[Any]] = {option: [] for option in options_of(command) if option not in ELSEWHERE}
    for names, table in ROWS.items():
        for option in table if command in names.split(", ") else ():
            rows[option] = [*rows.get(option, []), *table[option]]
    return rows


OPTIONS = [(command, option, rows) for command in COMMANDS for option, rows in rows_of(command).items()]


@cache
def recorded(command: str, typed: str, body: str) -> Record:
    model = [] if "--model" in typed.split() else ["--model", "m"]
    return run(command, [*model, *shlex.split(typed)], json.loads(body))


@pytest.fixture(scope="module", autouse=True)
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The files that the options read."""
    with contextlib.chdir(tmp_path_factory.mktemp("files")):
        Path("image.bin").write_bytes(b"\xf7\xf8")
        Path("schema.json").write_text("{}")
        Path("form.lark").write_text('start: "a"')
        Path("reference.txt").write_text("def read(path, strict=True):\n")
        NgramModTable(4, vocab_size=1024).save("memory.bin")
        NgramModTable(4, vocab_size=7).save("foreign.bin")
        Path("damaged.bin").write_bytes(Path("memory.bin").read_bytes()[:-9])
        yield


# What is typed, and a request.
Asked = tuple[str, dict[str, Any]]


def ways(command: str, about: str, row: list[Any]) -> Iterator[list[Asked]]:
    """What is asked with what a row is about, and the same without, for each way to generate tokens."""
    typed, _, _, needs = [*row, {}][:4]
    others, body = needs.get("with", ""), needs.get("body", {})
    pair: list[Asked] = [(others, body), (others, {})]
    if about.startswith("--"):
        pair = [(f"{about} {shlex.join(typed.split())} {others}", body), (others, body)]
    yield pair
    if not SHARED.search(about + others):
        yield [(f"{typed} --draft-type auto", body) for typed, body in pair]
    # A request with a seed is served alone, like one with a margin, and not in the batch.
    if command == "server" and about != "--draft-margin":
        yield [(typed, {"seed": 1} | body) for typed, body in pair]


def check(command: str, about: str, rows: list[list[Any]]) -> None:
    """Check that an option, or a field of a request, reaches its places."""
    if not rows:
        broken(f"{about} of mlx_lm.{command} is new: say in {TABLES} where its value has to arrive")
    for row in rows:
        place, value = row[1], row[2]
        for way in ways(command, about, row):
            found, without = (recorded(command, typed, json.dumps(body)).at(place) for typed, body in way)
            typed = f"mlx_lm.{command} {way[0][0].strip()}" + (f" with {way[0][1]}" if way[0][1] else "")
            if found != value:
                broken(f"{typed} drops {about}: {place} is {found!r} instead of {value!r}")
            if without == value:
                broken(f"{typed}: {place} is {value!r} without {about} as well. {TABLES} needs another value")


@pytest.mark.parametrize(("command", "option", "rows"), OPTIONS, ids=[f"{one[0]}-{one[1]}" for one in OPTIONS])
def test_an_option_arrives(command: str, option: str, rows: list[Any]) -> None:
    check(command, option, rows)


@pytest.mark.parametrize("field", [*serving.OPTIONS, "draft_model", "prediction"])
def test_a_request_overrides_the_server(field: str) -> None:
    check("server", field, REQUEST.get(field, []))


def described(action: argparse.Action) -> dict[str, Any]:
    """The help, the type and the choices of an option."""
    shown = {name: value for name, value in vars(action).items() if name not in ("container", "type")}
    return shown | {"class": type(action), "type": getattr(action.type, "__name__", None)}


def test_the_options_of_drafting_are_the_same_everywhere() -> None:
    defined = argparse.ArgumentParser()
    add_draft_arguments(defined)
    first = {option: described(action) for option, action in by_name(defined).items()}
    for command in COMMANDS:
        own = options_of(command)
        if missing := first.keys() & by_name(defined).keys() - own.keys():
            broken(f"call add_draft_arguments in mlx_lm.{command}: it has no {', '.join(missing)}")
        for option in filter(SHARED.search, own):
            if first.setdefault(option, described(own[option])) != described(own[option]):
                broken(f"{option} is another one in mlx_lm.{command}: {described(own[option])}, not {first[option]}")


@pytest.mark.parametrize(
    ("command", "typed"), [(name, typed) for name, table in CONTRADICTIONS.items() for typed in table]
)
def test_a_contradiction_is_an_error_before_a_model_is_loaded(
    command: str, typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = shlex.split(typed.replace("FIXTURE", shlex.quote(str(FIXTURE))))
    monkeypatch.setattr(sys, "argv", [f"mlx_lm.{command}", "--model", "nowhere/nothing", *options])
    before = {path: path.read_bytes() for path in Path().iterdir()}
    with pytest.raises(SystemExit) as ended:
        module_of(command).main()
    assert {path: path.read_bytes() for path in Path().iterdir()} == before
    error = capsys.readouterr().err.splitlines()[-1]
    named = CONTRADICTIONS[command][typed]
    if ended.value.code != 2 or not all(name in error for name in named):
        broken(f"mlx_lm.{command} {typed} ends with {ended.value.code} and does not name {', '.join(named)}: {error}")
