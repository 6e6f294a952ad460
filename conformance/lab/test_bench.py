"""No parity is no speed, runs take turns, and the tables are those of the results. No test depends on times."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest

from conformance import ROOT
from conformance.doors.server.process import Client
from conformance.lab.bench import cells, models, serving, speed, tasks
from conformance.lab.bench.models import Subject

TOKENS, REPEATS = 8, cells.LEAST_REPEATS


@pytest.fixture(scope="module")
def subject() -> Subject:
    return models.larger(512)


def ready_of(subject: Subject, form: str = tasks.OWN, workload: str = "echo", tokens: int = TOKENS) -> cells.Ready:
    prompt, text = replace(tasks.single(workload, 0, tokens=60), form=form).encoded(subject)
    return cells.Ready(subject, prompt, tokens, text=text)


@pytest.mark.parametrize("form", [tasks.OWN, tasks.GIVEN])
def test_a_cell_has_parity(subject: Subject, form: str) -> None:
    for row in cells.compared(ready_of(subject, form), speed.LOOKUPS[:2], REPEATS):
        assert row["parity"]
        assert row["low"] <= row["speed"] <= row["high"]
        assert row["fed_per_token"] >= 1
        assert row["tokens_per_forward"] > 1


@pytest.mark.planted
def test_other_tokens_show_no_speed(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    in_turns, repetition = cells.in_turns, iter(range(1000))

    def wrong(decodings: Sequence[cells.Decoding]) -> list[cells.TimedRun]:
        runs = in_turns(decodings)
        if next(repetition) == 2:
            runs[-1].tokens[-1] += 1
        return runs

    monkeypatch.setattr(cells, "in_turns", wrong)
    found = list(cells.compared(ready_of(subject), speed.LOOKUPS[:3], REPEATS))
    assert [row["parity"] for row in found] == [True, True, False]
    for row in found:
        assert row["parity"] == (row["speed"] is not None) == (row["low"] is not None)


class Watch:
    """A clock that advances with each token, and the order of the runs that decoded them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.order, self.under_way = 0.0, "", 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(mx, "synchronize", lambda _: self.finish())

    def finish(self) -> None:
        self.now, self.under_way = self.now + self.under_way, 0.0

    def decoding(self, ready: cells.Ready, name: str, seconds: float, under_way: float = 0.0) -> cells.Decoding:
        def step(prompt: mx.array, model: Any, prompt_progress_callback: Any, **_: Any) -> Iterator[tuple[int, None]]:
            # The prompt.
            self.now += 100.0
            prompt_progress_callback(1, 2)
            try:
                while True:
                    self.now += seconds
                    self.finish()
                    self.order += name
                    self.under_way = under_way
                    yield 7, None
            finally:
                self.order += name.lower()

        return cells.Decoding(ready, step, cells.TimedRun())


def test_runs_take_turns_and_each_has_its_own_time(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = ready_of(subject, tokens=25)
    watch = Watch(monkeypatch)
    # The first run has half of its next token in progress, as in plain decoding.
    first, second = cells.in_turns([watch.decoding(ready, "A", 0.5, under_way=0.5), watch.decoding(ready, "B", 2.0)])
    assert watch.order == 2 * ("A" * 10 + "B" * 10) + "A" * 5 + "B" * 5 + "ba"
    assert (len(first.tokens), len(second.tokens)) == (25, 25)
    # The time leaves out the prompt, and the work in progress after the last token.
    assert (first.seconds, second.seconds) == (24.5, 50.0)


@pytest.mark.repository
def test_the_documents_show_the_results(tmp_path: Path) -> None:
    from conformance.lab.bench import tables

    found = tables.load(ROOT / "docs" / "benchmarks")
    texts = [document.read_text() for document in tables.DOCUMENTS]
    assert {name for text in texts for _, name, _ in tables.MARKED.findall(text)} == set(tables.TABLES)
    assert [tables.filled(text, found) for text in texts] == texts
    tables.draw(found, tmp_path)
    assert (tmp_path / "speed-up.png").exists()
    # A stale table is seen.
    found["workloads"].loc[0, "speed"] += 1
    assert tables.filled(texts[0], found) != texts[0]


class Answers:
    """Takes the place of a server that gives drafted requests another text."""

    def __init__(self, drafted: str) -> None:
        self.drafted = drafted

    def post(self, body: dict[str, Any]) -> Answers:
        self.body = body
        return self

    def json(self) -> dict[str, Any]:
        text = "plain" if self.body["draft_type"] == "none" else self.drafted
        return {"choices": [{"message": {"content": text}}], "usage": {"completion_tokens": 3}}


def test_a_server_that_answers_otherwise_with_drafts_shows_no_speed() -> None:
    same, other = (
        serving.compared(partial(serving.burst, server, ["json"] * 2, tokens=3), REPEATS)
        for server in (cast(Client, Answers(drafted)) for drafted in ("plain", "other"))
    )
    assert same["parity"]
    assert same["low"] <= same["speed"] <= same["high"]
    assert (other["parity"], other["speed"]) == (False, None)


def test_a_few_prompts_are_a_table(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "larger", lambda: subject)
    options = ["--prompts", "json", "--strategies", "edit", "--tokens", "12", "--repeats", "3", "--temperature", "0.5"]
    monkeypatch.setattr(sys, "argv", ["speed", *options])
    assert speed.main() == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| json")]
    assert line.count("|") == 9
    assert "no parity" not in line
    monkeypatch.setattr(sys, "argv", ["speed", "--prompts", "jsno"])
    with pytest.raises(SystemExit):
        speed.main()
    assert "no jsno; there are rename" in capsys.readouterr().err
