"""The arithmetic, the tables and the page of the benchmark, with small settings.

No test depends on times of this machine. Planted faults are a run with other tokens, and a table of other results.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache

from conformance import FIXTURE, ROOT
from conformance.bench import (
    cells,
    limit,
    models,
    page,
    peers,
    report,
    results,
    rewinds,
    serving,
    strategies,
    tasks,
    workout,
)
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


def measured(subject: Subject, form: str = tasks.OWN, workload: str = "echo") -> list[Row]:
    task = replace(tasks.single(workload, 0, tokens=60), form=form)
    return list(cells.measure(subject, task, strategies.main_ones(subject)[:3], PLAN))


def result(speed: float | None = 2.0, strategy: str = strategies.AUTO, low: float = 1.5) -> Row:
    labels = {"model": "m", "weights": "bf16", "kv": "KVCache", "batch": 1, "strategy": strategy, "options": ""}
    labels |= {"workload": "echo", "task": "echo 1", "answer": "own", "size": "short", "turn": 1, "state": "cold"}
    counts = {"tokens": 9, "tokens_per_forward": 3.0, "fed_per_token": 1.5, "acceptance": 0.5, "positions": [[1, 2]]}
    times = {"plain_tps": 10.0, "tps": 20.0, "prefill_tps": 99.0, "plain_ttft": 1.0, "ttft": 1.1, "prompt_tokens": 50}
    counts |= {"blocks": {"3": 3}, "block_costs": {"1": 1.0, "3": 1.5}, "near_ties": 0}
    some = speed is not None
    speeds = {"speed": speed, "low": low if some else None, "high": 2.5 if some else None, "parity": some}
    return labels | counts | times | speeds


def run(*cells: Row, model: str = "m", **stages: Any) -> results.Results:
    meta = {"model": model, "device": "d", "versions": {"mlx": "1"}}
    meta["plan"] = {"prompts": 1, "repeats": 5, "tokens": 9}
    return {"meta": meta, "workloads": list(cells)} | stages


@pytest.mark.parametrize("form", [tasks.OWN, tasks.GIVEN])
def test_a_cell_has_parity_and_its_labels(subject: Subject, form: str) -> None:
    for row in measured(subject, form):
        assert row["parity"]
        assert row["runs"][1] == PLAN.repeats
        assert len(row["ratios"]) == PLAN.repeats
        assert row["low"] <= row["speed"] <= row["high"]
        assert {"weights", "kv", "prompt_tokens", "batch"} <= set(row)
        assert {"prefill_tps", "tps", "ttft", "tokens_per_forward", "fed_per_token", "acceptance"} <= set(row)
        forwards = sum(row["blocks"].values())
        fed = sum(int(length) * count for length, count in row["blocks"].items())
        assert fed - forwards == row["drafted"]


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
        assert row["parity"] == (row["speed"] is not None) == (row["ratios"] != []) == (row["tps"] is not None)


@pytest.mark.parametrize("few", [(2, 5), (5, 2)])
def test_too_few_runs_are_no_parity(few: tuple[int, int]) -> None:
    plain, drafted = ([cells.TimedRun([1], 1.0, 1.0)] * n for n in few)
    assert not cells.parity(plain, drafted)
    assert cells.parity(plain * 2, drafted * 2)


def test_a_given_answer_is_what_comes_out(subject: Subject) -> None:
    task = replace(tasks.single("prose", 0, tokens=60), form=tasks.GIVEN)
    ready = cells.prepare(subject, task, PLAN)
    prompt, text = task.tokens(subject)
    (run,) = cells.in_turns([ready.plain()])
    assert run.tokens == text[len(prompt) :][: PLAN.tokens]


def test_the_twin_leaves_the_cache_of_the_model() -> None:
    wide = models.larger(512)
    tokens = [i * 31 % 1000 for i in range(models.LONG_PROMPT + 40)]
    by_twin, seconds = wide.prefilled(tokens)
    again, _ = wide.prefilled([*tokens[:-20], *tokens[:10]])
    for asked, cache in ((tokens, by_twin), ([*tokens[:-20], *tokens[:10]], again)):
        own = make_prompt_cache(wide.model)
        models.fill(wide.model, asked, own)
        block = mx.array([[1, 2]])
        assert mx.array_equal(wide.model(block, cache=own), wide.model(block, cache=cache))
    assert seconds is None


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
    ready = cells.prepare(subject, tasks.single("echo", 0, tokens=60), replace(PLAN, tokens=25))
    watch = Watch(monkeypatch)
    # The first run has half of its next token in progress, as in plain decoding.
    first, second = cells.in_turns([watch.decoding(ready, "A", 0.5, under_way=0.5), watch.decoding(ready, "B", 2.0)])
    assert watch.order == 2 * ("A" * 10 + "B" * 10) + "A" * 5 + "B" * 5 + "ba"
    assert (len(first.tokens), len(second.tokens)) == (25, 25)
    # The time leaves out the prompt, and the work in progress after the last token.
    assert (first.first, first.seconds) == (0.5, 24.5)
    assert (second.first, second.seconds) == (2.0, 50.0)


def test_a_run_ends_with_the_text(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = cells.prepare(subject, tasks.single("echo", 0, tokens=60), PLAN)
    monkeypatch.setattr(Subject, "eos", {7})
    (run,) = cells.in_turns([Watch(monkeypatch).decoding(ready, "A", 1.0)])
    assert run.tokens == [7]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_each_way_to_rewind_stands_next_to_a_plain_run(n: int) -> None:
    order = rewinds.turns(n, 5)
    assert all(order.count(i) == 5 for i in range(n))
    assert all(i is None or None in (order[at - 1], order[at + 1]) for at, i in enumerate(order))
    # Plain runs take 4 seconds, drafted ones 2.
    runs = [cells.TimedRun([1], 4.0 if i is None else 2.0, 1.0) for i in order]
    for i in range(n):
        assert rewinds.beside_plain(runs, order, i)[1] == [2.0] * 5


def test_the_ideal() -> None:
    costs = {1: 1.0, 2: 1.5, 4: 2.0}
    assert [limit.cost(costs, n) for n in (1, 3, 6)] == [1.0, 1.75, 2.5]
    # A block of four with all accepted, one with one accepted, and two single tokens.
    recorded = [(3, 3), (0, 3)]
    blocks = limit.block_lengths(recorded, forwards=4)
    assert blocks == {4: 2, 1: 2}
    assert limit.ideal(blocks, 7, costs) == pytest.approx(7 / 6)
    assert limit.by_position([(3, 3), (0, 3), (1, 2)]) == [(2, 3), (1, 3), (1, 2)]


def test_a_step_of_plain_decoding_in_passes_of_one_token(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def model(tokens: mx.array, cache: list[Any]) -> mx.array:
        nonlocal now
        now += tokens.size if tokens[0, 0].item() < 8 else 0.5
        # Decoded tokens differ from the tokens that are fed for timing.
        return mx.where(mx.arange(64) == 9, 1.0, subject.model(tokens, cache=cache)[..., :64] * 0)

    cache, _ = subject.prefilled(list(range(1, 30)))
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    # A pass takes one second, and a step of plain decoding half a second.
    assert limit.plain_step(model, cache, repeats=3) == 0.5
    # Timing does not change the cache.
    assert cache[0].offset == 29


def test_the_ideal_is_that_of_the_costs_of_all_prompts() -> None:
    def prompt(n: int, cost: float, size: str = "short", speed: float | None = 1.5) -> Row:
        return result(speed) | {"task": f"echo {n}", "size": size, "block_costs": {"1": 1.0, "3": cost}}

    short = [prompt(1, 1.25), prompt(2, 1.5), prompt(3, 9.0), prompt(3, 9.0, speed=None)]
    first, *others, without, long = results.rows([run(*short, prompt(1, 3.0, "8k"))], "workloads")
    # Nine tokens in three blocks, which cost 1.5 each.
    assert [row["ideal"] for row in (first, *others, without, long)] == [2.0, 2.0, 2.0, 2.0, 1.0]
    assert (first["reached"], without["reached"], long["reached"]) == (0.75, None, 1.5)
    assert first["block_costs"]["3"] == 1.25


def test_the_tables_of_known_results() -> None:
    runs = [run(result(2.0), result(8.0, low=0.5), result(None, "ngram-mod"))]
    line = report.workloads(runs).splitlines()[2]
    assert "| 4.00 | 0.50 to 2.50 | 2.00 |" in line
    assert report.NO_PARITY in report.strategies(runs)
    assert "2 of 3" in report.subjects(runs)
    # If one cell has no parity, the mean is left out.
    assert report.speed([result(2.0), result(None)]) == report.NO_PARITY


def test_a_sweep_shows_the_defaults_the_best_and_the_worst_options() -> None:
    speeds = {"n=2": 1.0, "": 2.0, "n=3": 3.0, "n=4": 2.5}
    lines = report.sweep([run(sweep=[result(speed) | {"options": name} for name, speed in speeds.items()])])
    assert [line.split(" | ")[2:4] for line in lines.splitlines()[2:]] == [
        ["", "2.00"],
        ["n=3", "3.00"],
        ["n=2", "1.00"],
    ]


def test_a_line_of_the_peers_has_a_speed_for_each_workload() -> None:
    names = ("peer", "options", "plain_tps", "speed", "parity")
    found = [
        dict(zip(names, ("p", "k=2", plain, speed, speed is not None), strict=True)) | {"workload": workload}
        for workload, plain, speed in (("echo", 10.0, 2.0), ("prose", 20.0, None))
    ]
    _, _, *lines = report.peers([run(result(3.0), peers=found), run(result(9.0), model="other")]).splitlines()
    assert lines == [
        "| p | k=2 | 15.00 | 2.00 | no parity |",
        f"| this series | {strategies.AUTO} | 10.00 | 3.00 | — |",
    ]


@pytest.mark.planted
def test_stale_tables_are_found(tmp_path: Path) -> None:
    document, runs = tmp_path / "a.md", [run(result())]
    document.write_text("# A\n\n<!-- bench workloads -->\nold\n<!-- end workloads -->\nend\n")
    assert report.stale([document], runs) == [document]
    report.write([document], runs)
    assert report.stale([document], runs) == []
    assert document.read_text().endswith("<!-- end workloads -->\nend\n")
    assert report.stale([document], [run(result(2.01))]) == [document]


@pytest.mark.repository
def test_the_documents_show_the_results() -> None:
    runs = results.load(ROOT / "docs" / "benchmarks" / "results.json")
    texts = [document.read_text() for document in report.DOCUMENTS]
    assert {found[1] for text in texts for found in report.MARKED.findall(text)} == set(report.TABLES)
    assert report.stale(report.DOCUMENTS, runs) == []


@pytest.mark.repository
def test_the_example_of_an_edit_is_what_the_strategy_does() -> None:
    assert follow.table() in (ROOT / "docs" / "drafting.md").read_text()


def test_runs_are_merged_by_model_and_device(tmp_path: Path) -> None:
    first, second = run(result(), peers=[1]), run(result(3.0), drafters=[2])
    results.save(tmp_path / "a.json", [first])
    merged = results.merged(results.load(tmp_path / "a.json"), [second, run(model="other")])
    assert [each["meta"]["model"] for each in merged] == ["m", "other"]
    assert merged[0]["workloads"][0]["speed"] == 3.0
    assert merged[0]["peers"] == [1]
    assert merged[0]["drafters"] == [2]


def test_the_page_holds_all_rows_and_needs_no_network() -> None:
    text = page.page([run(result(), result(None) | {"model": "</script>"})])
    found = re.search(r"const data = (\{.*\});\n", text)
    assert found is not None
    assert len(json.loads(found[1].replace("<\\/", "</"))["rows"]) == 2
    assert text.count("</script>") == 1
    assert "http" not in text


def test_the_page_opens_with_a_line_a_workload() -> None:
    """The default strategy in short contexts alone, and no speed for a workload with a cell without parity."""
    right = [result(2.0), result(0.5), result(9.0) | {"strategy": "other"}, result(9.0) | {"size": "long"}]
    wrong = [row | {"workload": "<wrong>"} for row in (result(2.0), result(None))]
    text = page.page([run(*right, *wrong)])
    opening = text[: text.index("Every cell")]
    assert "<td class='n '>1.00</td>" in opening
    assert "<td class='n'>0.50</td>" in opening
    assert "<th>&lt;wrong&gt;</th><td colspan='3'>no parity</td>" in opening
    assert "9.00" not in opening
    assert "were not measured" in page.page([])


def answer(plain: Sequence[float], drafted: Sequence[float], last: int = 3) -> Row:
    runs = [{"tokens": [1, 2, 3], "seconds": s, "timed": 2, "forwards": 1, "fed": 3} for s in (*plain, *drafted)]
    runs[-1]["tokens"] = [1, 2, last]
    labels = {"workload": "echo", "versions": {}, "prompt_tokens": 5}
    return labels | {"plain": runs[: len(plain)], "drafted": runs[len(plain) :]}


def test_a_peer_is_a_ratio_to_its_own_plain_decoding() -> None:
    row = peers.finished(answer([2.0, 4.0, 2.0, 4.0], [1.0, 2.0, 1.0]), "p", "")
    assert (row["speed"], row["low"], row["high"]) == (3.0, 1.5, 3.0)
    wrong = peers.finished(answer([2.0] * 4, [1.0] * 3, last=4), "p", "")
    assert (wrong["parity"], wrong["speed"]) == (False, None)


def test_a_peer_that_cannot_be_installed_is_a_row(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, "", ""))
    monkeypatch.setattr(venv, "create", lambda *_, **__: None)
    found = list(peers.measure(subject, replace(PLAN, quick=False), lambda _: None))  # type: ignore[arg-type]
    assert ["pip cannot install" in row["missing"] for row in found] == [True] * len(peers.PEERS)
    assert report.peers([run(peers=found)]).count("missing: ") == len(found)


def test_tasks_are_the_same_every_time() -> None:
    for workload in tasks.WORKLOADS:
        once, again = (tasks.single(workload, 0) for _ in range(2))
        assert once == again
        assert once != tasks.single(workload, 1)


def test_a_saved_model_computes_the_same(tmp_path: Path) -> None:
    wide = models.larger(512)
    saved, _ = load(str(models.save(wide.model, tmp_path / "wide")))
    tokens = mx.array([[5, 6, 7]])
    assert mx.array_equal(saved(tokens), wide.model(tokens))
    assert FIXTURE.exists()


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


def test_four_copies_take_fewer_passes_where_blocks_are_cheap(subject: Subject) -> None:
    row = serving.passes(subject, 40)
    assert row["parity"]
    assert row["speed"] > 2.5


def test_a_workout_decodes_the_same_with_and_without_drafts() -> None:
    assert workout.decoder(drafted=True)("json") == workout.decoder(drafted=False)("json") > 10


def test_a_loop_is_seen() -> None:
    assert loops([1, 2, 3, 7, 8, 7, 8, 7, 8])
    assert loops([5, 4, 4, 4])
    assert not loops([1, 2, 3, 7, 8, 7, 8])
    assert not loops([1])
