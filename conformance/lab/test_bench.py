"""No parity is no speed, and the tables are those of the results. No test depends on times."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.draft import DraftStats
from mlx_lm.generate import speculative_generate_step

from conformance.doors.server.process import FAST
from conformance.lab.bench import cells, models, prefixes, speed
from conformance.lab.bench.models import Subject
from conformance.pages import USE, text_of
from conformance.subjects.prompts import PROMPTS


@pytest.fixture(scope="module")
def subject() -> Subject:
    return models.larger(512)


@pytest.mark.planted
@pytest.mark.usefixtures("known_costs")
def test_other_tokens_show_no_speed(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    in_turns, repetition = cells.in_turns, iter(range(1000))

    def wrong(runs: Sequence[cells.Run]) -> Sequence[cells.Run]:
        in_turns(runs)
        if next(repetition) == 2:
            runs[-1].tokens[-1] += 1
        return runs

    monkeypatch.setattr(cells, "in_turns", wrong)
    ready = cells.Ready(subject, subject.encode(PROMPTS["json"]), tokens=8)
    first, second, other = cells.compared(ready, speed.LOOKUPS[:3], cells.LEAST_REPEATS)
    for row in (first, second):
        assert row["parity"]
        assert row["low"] <= row["speed"] <= row["high"]
        assert row["tokens_per_forward"] > 1
    assert (other["parity"], other["speed"], other["low"]) == (False, None, None)


@pytest.mark.usefixtures("known_costs")
def test_a_run_drafts_as_a_request_does(subject: Subject) -> None:
    """Its strategy has seen the prompt as a prompt. As an answer it teaches changes that nobody made."""
    prompt, said, stats = subject.encode(PROMPTS["json"]), list[int](), DraftStats()
    run = cells.Ready(subject, prompt, tokens=100).drafted("edit")
    cells.in_turns([run])
    options = {"draft": "edit", "draft_costs": subject.costs, "eos_token_ids": subject.eos, "stats": stats}
    for token, *_ in speculative_generate_step(mx.array(prompt), subject.model, max_tokens=100, **options):
        said.append(token)
        if token in subject.eos:
            break
    assert run.tokens == said
    assert run.stats is not None
    assert (run.stats.forwards, run.stats.drafted) == (stats.forwards, stats.drafted)


@pytest.mark.repository
def test_the_page_shows_the_results(tmp_path: Path) -> None:
    from conformance.lab.bench import __main__ as bench

    assert bench.MARKED.findall(text_of(USE)) == [bench.shown(bench.OUT)]
    (tmp_path / "serving.csv").write_text(f"requests,clients,{','.join(bench.NUMBERS)}\ncopies,1,40,,,,2\n")
    assert bench.shown(tmp_path).endswith("| copies | 1 | 40.00 | no parity | — | 2.00 |\n")


def test_a_few_prompts_are_a_table(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "larger", lambda: subject)
    monkeypatch.setattr(speed, "REPEATS", cells.LEAST_REPEATS)
    options = ["--prompts", "json", "--strategies", "edit", "--tokens", "12", "--temperature", "0.5"]
    monkeypatch.setattr(sys, "argv", ["speed", *options])
    speed.main()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| json")]
    assert line.count("|") == 9
    assert "no parity" not in line


@pytest.mark.repository
def test_what_cannot_be_trimmed_feeds_little_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The release feeds most prompts of such a model anew, if they are asked alone: so the counts can differ."""
    for name, value in FAST.items():
        monkeypatch.setenv(name, value)
    hybrid = prefixes.NAMES[2]
    results = prefixes.every([hybrid], prefixes.QUICK)
    for door in prefixes.DOORS:
        assert prefixes.ratio(results, hybrid, door) <= 1.3
        # The retry.
        assert results[hybrid, door].fed[prefixes.WITH][-2] == 1
    alone = results[hybrid, "alone"]
    assert alone.fed[prefixes.STOCK] == alone.fed[prefixes.WITHOUT]
    assert alone.fed[prefixes.STOCK][-4:] == alone.prompts[-4:]
