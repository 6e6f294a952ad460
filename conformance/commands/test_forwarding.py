"""Every option of every command reaches the code that uses it, and so does every field of a request.

The options are read from the parser of each command. The commands run as for a user, up to the generators of tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
from mlx_lm.draft import serving
from mlx_lm.draft.arguments import add_draft_arguments
from mlx_lm.draft.options import DraftOptions

from conformance.commands.forwarding_cases import (
    BATCH,
    COMMON,
    DESTINATIONS,
    DRAFTING,
    MARGIN,
    OWN,
    QUANTIZED,
    REQUEST,
    SAMPLING,
    Case,
    ngram_size,
    write_files,
)
from conformance.testing.commands.recorders import COMMANDS, Record, module_of, parser_of, run, run_batch

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


@lru_cache(maxsize=16)
def recorded(command: str, argv: str, bodies: str = "[{}]", ranks: int = 1, template: bool = True) -> Record:
    return run(command, shlex.split(argv), json.loads(bodies), ranks=ranks, template=template)


def seen(case: Case, command: str, argv: str) -> Any:
    bodies = json.dumps([case.body or {}] + ([] if case.then is None else [case.then]))
    model = "" if argv.startswith("--model") else "--model m "
    record = recorded(command, model + argv.strip(), bodies, case.ranks, case.template)
    return record.at(case.where) if isinstance(case.where, str) else case.where(record)


def ways(case: Case, command: str, option: str) -> Iterator[Case]:
    """The ways to generate tokens that an option has to reach."""
    yield case
    everywhere = isinstance(case.where, str) and case.where.startswith("step.")
    if everywhere and option not in DRAFTING and "draft" not in option + case.also:
        yield case.but(also=f"--draft-type auto {case.also}")
        if command == "server":
            yield case.but(body={"seed": 1})
    if command == "server" and option in DRAFTING and option != "--draft-margin":
        # Drafted alone, not in the batch.
        yield case.but(body={"seed": 1})


def complaints(command: str, option: str) -> Iterator[str]:
    """The places that an option does not reach."""
    cases = DESTINATIONS[command].get(option)
    if cases is None:
        yield (
            f"mlx_lm.{command} has the option {option} and nothing says what it does: add where its value has to be "
            f"seen to the table of {command} in {TABLES}."
        )
        return
    for listed in cases:
        for case in ways(listed, command, option):
            argv = f"{option} {shlex.join(case.given.split()) if case.given else ''} {case.also}"
            if (value := seen(case, command, argv)) != case.value:
                yield f"mlx_lm.{command} {argv.strip()} drops it: {case.where} is {value!r} and not {case.value!r}."
            elif seen(case, command, case.also) == case.value:
                yield f"{case.where} is {case.value!r} without {option} as well: {TABLES} needs another value for it."


def options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The options of a parser, by their long names."""
    return {max(action.option_strings, key=len): action for action in parser._actions if action.dest != "help"}


OPTIONS = [(command, option) for command in COMMANDS for option in options(parser_of(command))]


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_an_option_arrives(command: str, option: str) -> None:
    found = list(complaints(command, option))
    if (command, option) in DROPPED:
        assert found, f"{option} arrives now: remove it from DROPPED in {__name__.replace('.', '/')}.py."
    else:
        assert not found, "\n".join(found)


def test_the_tables_name_no_other_options() -> None:
    known = {command: set(options(parser_of(command))) for command in COMMANDS}
    anywhere = set().union(*known.values())
    for table in (COMMON, SAMPLING, QUANTIZED, DRAFTING):
        assert set(table) <= anywhere
    for command, table in OWN.items():
        assert table.keys() <= known[command], command
    assert set(DROPPED) <= set(OPTIONS)


def described(action: argparse.Action) -> dict[str, Any]:
    """The help, the type and the choices of an option."""
    shown = {name: value for name, value in vars(action).items() if name not in ("container", "type")}
    # A command may take shorter texts than another one.
    shown["help"] = re.sub(r"\d+ characters", "characters", action.help or "")
    return shown | {"class": type(action), "type": getattr(action.type, "__name__", None)}


def differences() -> Iterator[str]:
    """The options of drafting that differ between commands."""
    defined = argparse.ArgumentParser()
    add_draft_arguments(defined)
    first = {option: ("add_draft_arguments", described(action)) for option, action in options(defined).items()}
    for command in COMMANDS:
        own = options(parser_of(command))
        for option in options(defined).keys() - own.keys():
            yield f"mlx_lm.{command} has no {option}: call add_draft_arguments in it."
        for option in filter(SHARED.search, own):
            where, it = first.setdefault(option, (f"mlx_lm.{command}", described(own[option])))
            if described(own[option]) != it:
                yield f"{option} is another one in mlx_lm.{command} than in {where}: define it in one place."


def test_the_options_of_drafting_are_the_same_everywhere() -> None:
    assert set(options_of_drafting()) == set(DRAFTING)
    assert not list(differences())


def options_of_drafting() -> dict[str, argparse.Action]:
    parser = argparse.ArgumentParser()
    add_draft_arguments(parser)
    return options(parser)


def ways_of_requests(field: str) -> Iterator[Case]:
    """The ways to serve a request: drafted alone, or in the batch."""
    for case in REQUEST[field]:
        yield case
        if field != "draft_margin" and MARGIN in case.also:
            yield case.but(also=case.also.replace(MARGIN, ""))


def complaints_of_requests() -> Iterator[str]:
    """The fields of a request that do not reach their place."""
    for field in (*serving.OPTIONS, "prediction"):
        if field not in REQUEST:
            yield f"A request has the field {field}: add where its value has to be seen to REQUEST in {TABLES}."
            continue
        for case in ways_of_requests(field):
            asked, default = seen(case, "server", case.also), seen(case.but(body={}), "server", case.also)
            if asked != case.value:
                yield f"The server drops {field} of a request: {case.where} is {asked!r} and not {case.value!r}."
            if default == case.value:
                yield f"{case.where} is {case.value!r} without {field} as well: {TABLES} needs another value for it."


def test_a_request_overrides_the_server() -> None:
    assert not list(complaints_of_requests())


# The options of the server, the fields of a request, and the result of both.
TOGETHER: dict[str, tuple[str, dict[str, Any], str | Callable[[Record], Any], Any]] = {
    "a size for a type of the request": ("--ngram-size 7", {"draft_type": "ngram-mod"}, ngram_size, 7),
    "a type, and a draft model of the request": (
        "--draft-type auto",
        {"draft_model": "a/draft"},
        "step.strategy.model.loaded_from",
        "a/draft",
    ),
    "a draft model of the request that drafts nothing": (
        "--draft-type auto",
        {"draft_model": "a/draft", "num_draft_tokens": 0},
        "answer.status",
        200,
    ),
    "a draft model that a request turns off": (
        "--draft-model a/draft",
        {"draft_type": "none"},
        "step.num_draft_tokens",
        0,
    ),
    "a margin of a request, and a draft model": (
        "--draft-model a/draft --draft-margin 0.5",
        {"draft_margin": 0.25},
        "step.margin",
        0.25,
    ),
    "a draft model that drafts too much": ("--draft-model a/draft", {"num_draft_tokens": 1025}, "answer.status", 400),
}


@pytest.mark.parametrize("what", TOGETHER)
def test_a_request_and_the_server_go_together(what: str) -> None:
    argv, body, where, value = TOGETHER[what]
    assert seen(Case("", where, value, argv, body), "server", argv) == value


@pytest.mark.parametrize("what", BATCH)
def test_an_argument_of_batch_generate_arrives(what: str, fixture: Any) -> None:
    make, where, value = BATCH[what]
    record = run_batch(**make(fixture[1]))
    record.note("tokenizer", it=fixture[1])
    assert (record.at(where) if isinstance(where, str) else where(record)) == value


# Planted faults


@pytest.fixture
def fresh() -> Iterator[None]:
    recorded.cache_clear()
    yield
    recorded.cache_clear()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_new_option_needs_a_destination(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_another(parser: argparse.ArgumentParser) -> None:
        add_draft_arguments(parser)
        parser.add_argument("--draft-extra", type=int)

    monkeypatch.setattr(module_of(command), "add_draft_arguments", with_another)
    (extra,) = set(options(parser_of(command))) - {option for name, option in OPTIONS if name == command}
    (complaint,) = complaints(command, extra)
    assert extra == "--draft-extra"
    assert TABLES in complaint


@pytest.mark.planted
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--num-draft-tokens", "--disable-adaptive-gate", "--draft-margin"])
def test_an_option_that_is_dropped_is_found(command: str, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, planner, name = DraftOptions.of, DraftOptions.make_planner, option[2:].replace("-", "_")

    def without(options: DraftOptions) -> DraftOptions:
        return replace(options, **{name: getattr(DraftOptions(), name)})

    def of(_: type[DraftOptions], kwargs: dict[str, Any], *args: Any, **more: Any) -> DraftOptions:
        is_call = "draft" in kwargs
        options: DraftOptions = kept(kwargs, *args, **more)
        return without(options) if is_call else options

    monkeypatch.setattr(DraftOptions, "of", classmethod(of))
    monkeypatch.setattr(DraftOptions, "make_planner", lambda self, *args: planner(without(self), *args))
    assert any("drops it" in complaint for complaint in complaints(command, option))


@pytest.mark.planted
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("name", "option"), [("max_tokens", "--max-tokens"), ("sampler", "--temp")])
@pytest.mark.parametrize("drafts", [False, True])
def test_an_option_that_is_dropped_with_or_without_drafts_is_found(
    name: str, option: str, drafts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = module_of("chat")
    generate: Callable[..., Any] = chat.stream_generate

    def without(*args: Any, **kwargs: Any) -> Any:
        if drafts == bool(kwargs["draft"]):
            del kwargs[name]
        return generate(*args, **kwargs)

    monkeypatch.setattr(chat, "stream_generate", without)
    (complaint,) = complaints("chat", option)
    assert ("--draft-type" in complaint) == drafts


@pytest.mark.planted
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("field", serving.OPTIONS)
def test_a_field_of_a_request_that_is_dropped_is_found(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = module_of("server")
    read: Callable[..., DraftOptions] = server.request_draft_options

    def without(body: dict[str, Any], *args: Any, **kwargs: Any) -> DraftOptions:
        return read({name: value for name, value in body.items() if name != field}, *args, **kwargs)

    monkeypatch.setattr(server, "request_draft_options", without)
    assert any(f"drops {field} " in complaint for complaint in complaints_of_requests())


@pytest.mark.planted
@pytest.mark.usefixtures("fresh")
def test_an_option_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def another(parser: argparse.ArgumentParser) -> None:
        add_draft_arguments(parser)
        options(parser)["--ngram-size"].help = "Another one"

    monkeypatch.setattr(module_of("chat"), "add_draft_arguments", another)
    (difference,) = differences()
    assert "--ngram-size" in difference
    assert "mlx_lm.chat" in difference
