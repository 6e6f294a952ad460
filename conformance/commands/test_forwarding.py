"""Every option of every command reaches the code that uses it, and so does every field of a request.

The options are read from the parser of each command. The commands run as for a user, up to what generates tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
from mlx_lm.draft import serving
from mlx_lm.draft.arguments import add_draft_arguments
from mlx_lm.draft.options import DraftOptions

from conformance.commands.forwarding_cases import (
    ALONE,
    BATCH,
    COMMON,
    DESTINATIONS,
    DRAFTING,
    OWN,
    QUANTIZED,
    REQUEST,
    SAMPLING,
    Case,
    write_files,
)
from conformance.doors.commands import COMMANDS, Record, module_of, parser_of, run, run_batch

TABLES = "conformance/commands/forwarding_cases.py"
# Options that upstream's commands parse and ignore. An entry that no longer holds fails.
DROPPED = {("generate", "--use-default-chat-template"): "main() does not read it in 0.32.1 and 0.32.2"}
# Commands without text generation may have options of the same name with another meaning.
SHARED = re.compile("draft|ngram|lookup|gate")


@pytest.fixture(scope="module", autouse=True)
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    with contextlib.chdir(folder):
        yield


@cache
def recorded(command: str, argv: str, bodies: str = "[{}]", ranks: int = 1, template: bool = True) -> Record:
    return run(command, shlex.split(argv), json.loads(bodies), ranks=ranks, template=template)


def seen(case: Case, command: str, argv: str) -> Any:
    bodies = json.dumps([case.body or {}] + ([] if case.then is None else [case.then]))
    model = "" if argv.startswith("--model") else "--model m "
    record = recorded(command, model + argv.strip(), bodies, case.ranks, case.template)
    return record.at(case.where) if isinstance(case.where, str) else case.where(record)


def ways(case: Case, command: str, option: str) -> Iterator[Case]:
    """The ways to generate tokens that an option or a field has to reach."""
    yield case
    everywhere = isinstance(case.where, str) and case.where.startswith("step.")
    if everywhere and option not in DRAFTING and "draft" not in option + case.also:
        yield case.but(also=f"--draft-type auto {case.also}")
        if command == "server":
            yield case.but(body={"seed": 1})
    if command == "server" and option in DRAFTING and option != "--draft-margin":
        # Drafted alone, not in the batch.
        yield case.but(body={"seed": 1})
    if option in REQUEST and option != "draft_margin" and ALONE in case.also:
        yield case.but(also=case.also.replace(ALONE, ""))


def check(command: str, option: str, cases: tuple[Case, ...] | None) -> None:
    """Check that an option, or a field of a request, reaches its places."""
    assert cases, f"Add where the value of {option} has to be seen to the table of {command} in {TABLES}."
    is_field = option in REQUEST
    for listed in cases:
        for case in ways(listed, command, option):
            given = "" if is_field else f"{option} {shlex.join(case.given.split()) if case.given else ''} "
            argv = f"{given}{case.also}"
            value = seen(case, command, argv)
            assert value == case.value, f"mlx_lm.{command} {argv.strip()} drops {option}: {case.where} is {value!r}"
            default = seen(case.but(body={}) if is_field else case, command, case.also)
            assert default != case.value, f"it is {default!r} without {option} as well: {TABLES} needs another value"


def options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The options of a parser, by their long names."""
    return {max(action.option_strings, key=len): action for action in parser._actions if action.dest != "help"}


OPTIONS = [(command, option) for command in COMMANDS for option in options(parser_of(command))]


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_an_option_arrives(command: str, option: str) -> None:
    is_dropped = (command, option) in DROPPED
    with pytest.raises(AssertionError, match="drops") if is_dropped else contextlib.nullcontext():
        check(command, option, DESTINATIONS[command].get(option))


def test_the_tables_name_no_other_options() -> None:
    known = {command: set(options(parser_of(command))) for command in COMMANDS}
    assert {*COMMON, *SAMPLING, *QUANTIZED, *DRAFTING} <= set().union(*known.values())
    for command, table in OWN.items():
        assert table.keys() <= known[command], command
    assert set(DROPPED) <= set(OPTIONS)


def described(action: argparse.Action) -> dict[str, Any]:
    """The help, the type and the choices of an option."""
    shown = {name: value for name, value in vars(action).items() if name not in ("container", "type")}
    # A command may take shorter texts than another one.
    shown["help"] = re.sub(r"\d+ characters", "characters", action.help or "")
    return shown | {"class": type(action), "type": getattr(action.type, "__name__", None)}


def check_that_they_are_the_same() -> None:
    """Every command has the options of drafting, and none of them differs between commands."""
    defined = argparse.ArgumentParser()
    add_draft_arguments(defined)
    assert set(options(defined)) == set(DRAFTING)
    first = {option: described(action) for option, action in options(defined).items()}
    for command in COMMANDS:
        own = options(parser_of(command))
        assert options(defined).keys() <= own.keys(), f"call add_draft_arguments in mlx_lm.{command}"
        for option in filter(SHARED.search, own):
            found = described(own[option])
            assert first.setdefault(option, found) == found, f"{option} is another one in mlx_lm.{command}"


def test_the_options_of_drafting_are_the_same_everywhere() -> None:
    check_that_they_are_the_same()


@pytest.mark.parametrize("field", [*serving.OPTIONS, "draft_model", "prediction"])
def test_a_request_overrides_the_server(field: str) -> None:
    check("server", field, REQUEST.get(field))


@pytest.mark.parametrize("what", BATCH)
def test_an_argument_of_batch_generate_arrives(what: str) -> None:
    given, where, value = BATCH[what]
    record = run_batch(**given)
    assert (record.at(where) if isinstance(where, str) else where(record)) == value


# Planted faults


# A request of the server takes its length from the arguments too, as in the release.
TAKEN_OUT = [
    (command, option)
    for command, option in product(COMMANDS, ["--num-draft-tokens", "--disable-adaptive-gate", "--draft-margin"])
    if (command, option) != ("server", "--num-draft-tokens")
]


@pytest.fixture
def fresh() -> Iterator[None]:
    recorded.cache_clear()
    yield
    recorded.cache_clear()


@pytest.mark.planted
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("command", "option"), TAKEN_OUT)
def test_an_option_that_is_dropped_is_found(command: str, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name = module_of(command), option[2:].replace("-", "_")
    parse: Callable[..., DraftOptions] = module.parse_draft_options

    def without(*args: Any, **kwargs: Any) -> DraftOptions:
        return replace(parse(*args, **kwargs), **{name: getattr(DraftOptions(), name)})

    monkeypatch.setattr(module, "parse_draft_options", without)
    with pytest.raises(AssertionError, match=f"drops {option}"):
        check(command, option, DESTINATIONS[command][option])


@pytest.mark.planted
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("name", "option"), [("max_tokens", "--max-tokens"), ("sampler", "--temp")])
@pytest.mark.parametrize("drafts", [False, True])
def test_an_option_that_is_dropped_with_or_without_drafts_is_found(
    name: str, option: str, drafts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Record.step

    def without(record: Record, *, draft: Any = None, **arguments: Any) -> Any:
        if drafts == bool(draft):
            del arguments[name]
        return step(record, draft=draft, **arguments)

    monkeypatch.setattr(Record, "step", without)
    with pytest.raises(AssertionError, match="--draft-type auto drops" if drafts else r"--\S+ \S+ drops"):
        check("chat", option, DESTINATIONS["chat"][option])


@pytest.mark.planted
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("field", serving.OPTIONS)
def test_a_field_of_a_request_that_is_dropped_is_found(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = module_of("server")
    read: Callable[..., DraftOptions] = server.request_draft_options

    def without(body: dict[str, Any], *args: Any, **kwargs: Any) -> DraftOptions:
        return read({name: value for name, value in body.items() if name != field}, *args, **kwargs)

    monkeypatch.setattr(server, "request_draft_options", without)
    with pytest.raises(AssertionError, match=f"drops {field}"):
        check("server", field, REQUEST[field])


@pytest.mark.planted
@pytest.mark.usefixtures("fresh")
def test_an_option_that_is_new_or_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def others(parser: argparse.ArgumentParser) -> None:
        add_draft_arguments(parser)
        parser.add_argument("--draft-extra", type=int)
        options(parser)["--ngram-size"].help = "Another one"

    monkeypatch.setattr(module_of("chat"), "add_draft_arguments", others)
    (extra,) = set(options(parser_of("chat"))) - {option for name, option in OPTIONS if name == "chat"}
    with pytest.raises(AssertionError, match=TABLES):
        check("chat", extra, DESTINATIONS["chat"].get(extra))
    with pytest.raises(AssertionError, match=r"--ngram-size is another one in mlx_lm\.chat"):
        check_that_they_are_the_same()
