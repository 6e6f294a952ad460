"""Every option of drafting and of decoding reaches the code that uses it, and so does every field of a request.

The options are read from the parser of each command, the places that they must reach from options.toml. The commands
run as for a user, up to what generates tokens. Options that contradict each other are an error before that.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
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
from mlx_lm.draft.options import DRAFT_TYPES

from conformance import FIXTURE
from conformance.doors.commands import COMMANDS, Record, by_name, module_of, options_of, run
from conformance.oracle.findings import broken

pytestmark = pytest.mark.contract("C6")
TABLES = Path(__file__).with_name("options.toml")
ROWS: dict[str, dict[str, Any]] = tomllib.loads(TABLES.read_text("utf-8"))
CONTRADICTIONS, REQUEST, ELSEWHERE = ROWS.pop("contradictions"), ROWS.pop("request"), ROWS.pop("elsewhere")
# Commands without text generation may have options of the same name with another meaning.
SHARED = re.compile("draft|ngram|lookup|gate")
OPTIONS = [(command, option) for command in COMMANDS for option in options_of(command) if option not in ELSEWHERE]


@cache
def recorded(command: str, typed: str, bodies: str) -> Record:
    model = [] if "--model" in typed.split() else ["--model", "m"]
    return run(command, [*model, *shlex.split(typed)], json.loads(bodies))


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
    typed, place, _, needs = [*row, {}][:4]
    others, body = needs.get("with", ""), needs.get("body", {})
    pair: list[Asked] = [(others, body), (others, {})]
    if about.startswith("--"):
        pair = [(f"{about} {shlex.join(typed.split())} {others}", body), (others, body)]
    yield pair
    if place.startswith("step.") and not SHARED.search(about + others):
        yield [(f"{typed} --draft-type auto", body) for typed, body in pair]
    # A request with a seed is served alone, like one with a margin, and not in the batch.
    if place.startswith("step.") and command == "server" and about != "--draft-margin":
        yield [(typed, {"seed": 1} | body) for typed, body in pair]


def check(command: str, about: str, rows: list[list[Any]]) -> None:
    """Check that an option, or a field of a request, reaches its places."""
    if not rows:
        broken(f"{about} of mlx_lm.{command} is new: say in {TABLES} where its value has to arrive")
    for row in rows:
        place, value, then = row[1], row[2], [row[3]["then"]] if row[3:] and "then" in row[3] else []
        for way in ways(command, about, row):
            found, without = (recorded(command, typed, json.dumps([body, *then])).at(place) for typed, body in way)
            typed = f"mlx_lm.{command} {way[0][0].strip()}" + (f" with {way[0][1]}" if way[0][1] else "")
            if found != value:
                broken(f"{typed} drops {about}: {place} is {found!r} instead of {value!r}")
            if without == value:
                broken(f"{typed}: {place} is {value!r} without {about} as well. {TABLES} needs another value")


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_an_option_arrives(command: str, option: str) -> None:
    rows = [row for names, table in ROWS.items() if command in names.split(", ") for row in table.get(option, [])]
    check(command, option, rows)


@pytest.mark.parametrize("field", [*serving.OPTIONS, "draft_model", "prediction"])
def test_a_request_overrides_the_server(field: str) -> None:
    check("server", field, REQUEST.get(field, []))


def test_each_row_has_its_option() -> None:
    for names, table in ROWS.items():
        for command, option in itertools.product(names.split(", "), table):
            if (command, option) not in OPTIONS:
                broken(f"mlx_lm.{command} has no {option}: take it out of [{names!r}] in {TABLES}")


def test_each_draft_type_has_a_case() -> None:
    typed = {row[0] for table in ROWS.values() for row in table.get("--draft-type", [])}
    # --prompt-lookup-num-tokens is auto, and a request may be none.
    if new := {*DRAFT_TYPES} - typed - {"auto"}:
        broken(f"--draft-type {', '.join(new)} has no case: add one to {TABLES}")


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
