"""The arithmetic, the tables and the pictures of the benchmark, with small settings.

No test depends on times of this machine. Planted faults are a run with other tokens, and a table of other results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import pytest
from mlx_lm import load

from conformance import ROOT
from conformance.bench import cells, costs, models, serving, speed, strategies, tasks
from conformance.bench.cells import Row
from conformance.bench.models import Subject
from conformance.bench.plan import QUICK
from conformance.simulate import follow
from conformance.testing.server.process import Client
from conformance.testing.texts.loops import loops

PLAN = replace(QUICK, tokens=8, lengths=(1, 2))


@pytest.fixture(scope="module")
def subject() -> Subject:
    return models.shipped()


@pytest.fixture
def shown() -> Any:
    """The modules that need pandas and matplotlib, which the default environments have not."""
    from conformance.bench import pictures, results, tables

    return SimpleNamespace(pictures=pictures, results=results, tables=tables)


def ready_of(subject: Subject, task: tasks.Task, **plan: Any) -> cells.Ready:
    prompt, text = task.tokens(subject)
    return cells.Ready(subject, prompt, replace(PLAN, **plan), text)


def measured(subject: Subject, form: str = tasks.OWN, workload: str = "echo") -> list[Row]:
    task = replace(tasks.single(workload, 0, tokens=60), form=form)
    return list(cells.measure(subject, task, strategies.main_ones(subject)[:3], PLAN))


def result(speed: float | None = 2.0, strategy: str = strategies.AUTO, low: float = 1.5, **labels: Any) -> Row:
    some = speed is not None
    return {
        **{"device": "d", "model": "m", "weights": "bf16", "workload": "echo", "task": "echo 1", "answer": "own"},
        **{"size": "short", "turn": 1, "strategy": strategy, "prompt_tokens": 50, "parity": some},
        **{"tokens": 9, "decoded": 9, "tokens_per_forward": 3.0, "fed_per_token": 1.5, "acceptance": 0.5},
        **{"blocks": "3:3", "plain_tps": 10.0, "speed": speed, "low": low if some else None},
        **{"high": 2.5 if some else None},
        **labels,
    }


def blocks(cost: float, context: int = 50, **labels: Any) -> Row:
    row = {"device": "d", "model": "m", "weights": "bf16", "context": context, "ms a token": 1.0}
    return row | {"block of 1": 1.0, "block of 3": cost, "MiB of cache": 1.0} | labels


def frames(**stages: Sequence[Row]) -> Any:
    import pandas as pd

    return {name: pd.DataFrame(rows) for name, rows in stages.items()}


@pytest.mark.parametrize("form", [tasks.OWN, tasks.GIVEN])
def test_a_cell_has_parity_and_its_labels(subject: Subject, form: str) -> None:
    for row in measured(subject, form):
        assert row["parity"]
        assert row["low"] <= row["speed"] <= row["high"]
        assert {"weights", "prompt_tokens", "strategy", "fed_per_token"} <= set(row)
        blocks = dict(pair.split(":") for pair in row["blocks"].split())
        fed, forwards = sum(int(n) * int(count) for n, count in blocks.items()), sum(map(int, blocks.values()))
        assert fed == pytest.approx(row["fed_per_token"] * row["tokens_per_forward"] * forwards)
        assert row["decoded"] == row["tokens_per_forward"] * forwards


def test_other_tokens_show_no_speed(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    in_turns, repetition = cells.in_turns, iter(range(1000))

    def wrong(decodings: Sequence[cells.Decoding]) -> list[cells.TimedRun]:
        runs = in_turns(decodings)
        if next(repetition) == 2:
            runs[-1].tokens[-1] += 1
        return runs

    monkeypatch.setattr(cells, "in_turns", wrong)
    found = measured(subject)
    assert [row["parity"] for row in found] == [True, True, False]
    for row in found:
        assert row["parity"] == (row["speed"] is not None) == (row["low"] is not None)


@pytest.mark.parametrize("few", [(2, 5), (5, 2)])
def test_too_few_runs_are_no_parity(few: tuple[int, int]) -> None:
    plain, drafted = ([cells.TimedRun([1], 1.0)] * n for n in few)
    assert not cells.parity(plain, drafted)
    assert cells.parity(plain * 2, drafted * 2)


def test_a_given_answer_is_what_comes_out(subject: Subject) -> None:
    task = replace(tasks.single("prose", 0, tokens=60), form=tasks.GIVEN)
    ready = ready_of(subject, task)
    (run,) = cells.in_turns([ready.plain()])
    assert run.tokens == ready.text[len(ready.prompt) :][: PLAN.tokens]


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
    ready = ready_of(subject, tasks.single("echo", 0, tokens=60), tokens=25)
    watch = Watch(monkeypatch)
    # The first run has half of its next token in progress, as in plain decoding.
    first, second = cells.in_turns([watch.decoding(ready, "A", 0.5, under_way=0.5), watch.decoding(ready, "B", 2.0)])
    assert watch.order == 2 * ("A" * 10 + "B" * 10) + "A" * 5 + "B" * 5 + "ba"
    assert (len(first.tokens), len(second.tokens)) == (25, 25)
    # The time leaves out the prompt, and the work in progress after the last token.
    assert (first.seconds, second.seconds) == (24.5, 50.0)


def test_a_run_ends_with_the_text(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = ready_of(subject, tasks.single("echo", 0, tokens=60))
    monkeypatch.setattr(Subject, "eos", {7})
    (run,) = cells.in_turns([Watch(monkeypatch).decoding(ready, "A", 1.0)])
    assert run.tokens == [7]


def test_the_ideal() -> None:
    # Seven tokens in a block of four, one of three and two single tokens.
    assert costs.ideal(7, {4: 1, 3: 1, 1: 2}, {1: 1.0, 2: 1.5, 4: 2.0}) == pytest.approx(7 / 5.75)
    # Beyond the longest block the costs go on as between the last two.
    assert costs.ideal(6, {6: 1}, {1: 1.0, 2: 1.5, 4: 2.0}) == pytest.approx(6 / 2.5)


def test_the_ideal_is_at_the_costs_after_the_context_next_to_the_prompt(shown: Any) -> None:
    prompts = [result(1.5), result(1.5, prompt_tokens=8000), result(None), result(1.5, weights="fp16")]
    found = shown.results.cells(frames(workloads=prompts, blocks=[blocks(1.5), blocks(3.0, 8192)]), "workloads")
    # Nine tokens in three blocks, which cost 1.5 or 3 each. The costs of fp16 are not known.
    assert found.ideal.tolist()[:3] == [2.0, 1.0, 2.0]
    assert found.reached.tolist()[:2] == [0.75, 1.5]
    assert found.reached.isna().tolist() == [False, False, True, True]


def test_the_tables_of_known_results(shown: Any) -> None:
    runs = [{"device": "d", "model": "m", "versions": "mlx 1", "prompts": 1, "repetitions": 5, "tokens": 9}]
    cells = [result(2.0), result(8.0, low=0.5, task="echo 2"), result(None, "ngram-mod")]
    cells.append(result(2.0, workload="other", task="other 1"))
    found = frames(subjects=runs, workloads=cells, blocks=[blocks(1.5)])
    line, other = shown.tables.workloads(found).splitlines()[2:]
    assert "| 2 | 4.00 | 0.50 to 2.50 | 2.00 | 3.00 | 0.50 | 2.00 |" in line
    assert "| other | short | 1 | 2.00 |" in other
    assert "| 2.00 | no parity |" in shown.tables.strategies(found)
    assert "3 of 4" in shown.tables.subjects(found)
    # If one cell has no parity, the mean is left out.
    assert "| 2 | no parity |" in shown.tables.workloads(frames(workloads=[result(2.0), result(None)]))
    assert "| 1.00 | 1.50 | 1.00 |" in shown.tables.costs(found)
    assert shown.tables.made("serving", found) == shown.tables.NOTHING


@pytest.mark.planted
def test_stale_tables_are_found(shown: Any, tmp_path: Path) -> None:
    document, found = tmp_path / "a.md", frames(workloads=[result()])
    document.write_text("# A\n\n<!-- bench workloads -->\nold\n<!-- end workloads -->\nend\n")
    assert shown.tables.stale([document], found) == [document]
    shown.tables.write([document], found)
    assert shown.tables.stale([document], found) == []
    assert document.read_text().endswith("<!-- end workloads -->\nend\n")
    assert shown.tables.stale([document], frames(workloads=[result(2.01)])) == [document]


@pytest.mark.repository
def test_the_documents_show_the_results(shown: Any) -> None:
    tables, found = shown.tables, shown.results.load(ROOT / "docs" / "benchmarks")
    texts = [document.read_text() for document in tables.DOCUMENTS]
    assert {name for text in texts for _, name, _ in tables.MARKED.findall(text)} == set(tables.TABLES)
    assert tables.stale(tables.DOCUMENTS, found) == []


def test_the_pictures_are_drawn(shown: Any, tmp_path: Path) -> None:
    cells = [result(2.0), result(0.9, workload="prose", low=0.8), result(1.5, "suffix"), result(None, "ngram-mod")]
    found = frames(workloads=cells, blocks=[blocks(1.5)])
    drawn = [path.name for path in shown.pictures.draw(found, tmp_path)]
    assert drawn == ["speed-up.png", "block-cost.png"]
    (axes,) = shown.pictures.speed_up(found).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["prose", "echo"]
    assert [(bar.get_x(), round(bar.get_width(), 6)) for bar in axes.patches] == [(1, -0.1), (1, 1.0)]
    assert list(shown.pictures.draw({}, tmp_path)) == []


@pytest.mark.repository
def test_the_example_of_an_edit_is_what_the_strategy_does() -> None:
    assert follow.shown() in (ROOT / "docs" / "drafting.md").read_text()


def test_a_run_replaces_one_of_the_same_model_and_device(shown: Any, tmp_path: Path) -> None:
    first = [result(1.0), result(2.0, model="other"), result(3.0, device="e")]
    for rows in (first, [result(4.0), result(5.0)]):
        shown.results.add(tmp_path, "workloads", frames(rows=rows)["rows"])
    (found,) = shown.results.load(tmp_path).values()
    assert list(zip(found.model, found.device, found.speed, strict=True)) == [
        ("other", "d", 2.0),
        ("m", "e", 3.0),
        ("m", "d", 4.0),
        ("m", "d", 5.0),
    ]


def test_tasks_are_the_same_every_time() -> None:
    for workload in tasks.WORKLOADS:
        once, again = (tasks.single(workload, 0) for _ in range(2))
        assert once == again
        assert once != tasks.single(workload, 1)


def test_a_saved_model_computes_the_same(tmp_path: Path) -> None:
    wide = models.larger(512)
    saved, _ = load(str(models.save(wide.model, tmp_path)))
    tokens = mx.array([[5, 6, 7]])
    assert mx.array_equal(saved(tokens), wide.model(tokens))


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
        serving.compared(partial(serving.burst, server, ["json"] * 2, tokens=3), PLAN.repeats)
        for server in (cast(Client, Answers(drafted)) for drafted in ("plain", "other"))
    )
    assert same["parity"]
    assert same["low"] <= same["speed"] <= same["high"]
    assert (other["parity"], other["speed"]) == (False, None)


def test_a_few_prompts_are_a_table(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "larger", lambda _: subject)
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


def test_a_loop_is_seen() -> None:
    assert loops([1, 2, 3, 7, 8, 7, 8, 7, 8])
    assert loops([5, 4, 4, 4])
    assert not loops([1, 2, 3, 7, 8, 7, 8])
    assert not loops([1])
