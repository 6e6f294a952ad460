"""The check and probe commands give the right answers and exit codes for a model of a user."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.models.cache import KVCache

from conformance.__main__ import DRAFT_TYPES, main
from conformance.check import check, probe
from conformance.check.prompts import Unusable, from_file
from conformance.subjects.inexact import OfAnotherKernel

pytestmark = pytest.mark.usefixtures("uncompiled")

PROSE = "Write prose.\nThe object keeps"
PROMPT = "Change `total` to `count`.\n```\ntotal = 0\nfor name, amount in rows:\n    total += amount\nprint(total)\n```"


class Unsteady(OfAnotherKernel):
    """A model with new random noise at each call, also for single tokens."""

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        return self.model(inputs, cache=cache) + self.bound * self.noise((1024,))


@pytest.fixture
def asked(
    fixture: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, dict[str, Any]]]:
    """Run a command on a given model. Returns the exit code, the text and the JSON."""

    def ask(command: str, model: Any, *options: str, text: str = PROMPT) -> Any:
        monkeypatch.setattr(mlx_lm, "load", lambda _: (model, fixture[1]))
        for name, value in {"QUICK": (1, 2, 5, 8), "CONTEXTS": (16, 64), "QUICK_REPEATS": 1}.items():
            monkeypatch.setattr(probe, name, value)
        monkeypatch.setattr(check, "RUNS", 2)
        prompts, out = tmp_path / "prompts", tmp_path / "out.json"
        prompts.write_text(json.dumps(text), "utf-8")
        named = ("--prompts", str(prompts), "--max-tokens", "24", "--ungated") if command == "check" else ("--quick",)
        code = main([command, "--model", "theirs", *named, "--json", str(out), *options])
        found = json.loads(out.read_text("utf-8"))
        assert found["exit"] == code
        return code, capsys.readouterr().out, found

    return ask


def one_short(cache: KVCache, n: int, right: Any = KVCache.trim) -> int:
    right(cache, max(n - 1, 0))
    return n


def refuse(cache: KVCache, n: int) -> int:
    raise RuntimeError("no rows are left\nin the cache")


RAISES = "FAULT at token 0: drafting raises RuntimeError: no rows are left, and plain decoding does not"


# A margin covers the noise of half of it, or some steps of the type of the logits.
@pytest.mark.parametrize(
    ("kind", "noise", "trim", "options", "code", "says"),
    [
        (OfAnotherKernel, 0, None, [], 0, "4 of 4 have the same tokens, bit for bit"),
        (OfAnotherKernel, 4, None, [], 1, "near tie at token"),
        (OfAnotherKernel, 4, None, ["--draft-margin", "8"], 0, "4 of 4 have the same tokens"),
        (OfAnotherKernel, 0.05, one_short, [], 2, "FAULT at token"),
        (OfAnotherKernel, 0, refuse, [], 2, RAISES),
        (Unsteady, 2, None, [], 1, "two plain runs differ at token"),
    ],
)
def test_check(
    asked: Any, fixture: Any, monkeypatch: Any, kind: Any, noise: float, trim: Any, options: Any, code: int, says: str
) -> None:
    if trim is not None:
        monkeypatch.setattr(KVCache, "trim", trim)
    status, text, found = asked("check", kind(fixture[0], noise), *options, text=PROMPT if trim else PROSE)
    (prompt,) = found["prompts"]
    assert status == code
    assert says in text
    assert ("FAULT" in text) == (prompt["verdict"] == "fault") == (code == 2)
    assert (check.UNSTEADY in text) == bool(prompt["plain_differ"]) == ("two plain" in says)
    assert text.endswith((f"{check.ADVICE[code]}\n", f"{check.UNSTEADY}\n"))
    assert [*prompt["verdicts"]] == ["drafted 1", "drafted 2", "every depth"]
    ties = [tie for verdict in prompt["verdicts"].values() for tie in verdict["near_ties"]]
    # Where single steps have noise too, any token may be a tie.
    assert prompt["plain_differ"] or all(tie["noise"] > 0 and tie["block"] > 1 for tie in ties)


@pytest.mark.parametrize(("off", "exact"), [(0.0, 8), (4.0, 1)])
def test_probe(asked: Any, fixture: Any, off: float, exact: int) -> None:
    code, text, found = asked("probe", OfAnotherKernel(fixture[0], off))
    assert code == 0
    assert f"\nidentical: a block of up to {exact} tokens" in text
    assert [row["noise"] > 0 for row in found["rows"]] == [row["length"] > exact for row in found["rows"]]
    assert f"\ndraft_margin={4 * max(row['noise'] for row in found['rows']):.3g} is" in text


def test_a_file_of_prompts(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_text('\ufeff"a\\nb"\n\nplain\ftext\n"Hello," she said.\n7\n', "utf-8")
    told = [messages[0]["content"] for messages in from_file(file).values()]
    assert told == ["a\nb", "plain\ftext", '"Hello," she said.', "7"]
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(Unusable, match=str(file)):
        from_file(file)


def test_the_draft_types_are_those_of_the_product() -> None:
    assert set(DRAFT_TYPES) == set(mlx_lm.draft.options.DRAFT_TYPES)
