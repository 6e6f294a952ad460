"""Compare and show judged trees, load adapters, and tell what of a tree ran."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import judge
import mlx.core as mx
import pytest
from environments import base_of

from conformance import ROOT, adapters
from conformance.adapters import NAMES, Adapters, Unusable, load, offered
from conformance.judging import ran, results, run
from conformance.judging.difference import (
    BROKE,
    CHANGED,
    GONE,
    MENDED,
    NOT_KEPT,
    OFFERED,
    STOPPED,
    differences,
)
from conformance.judging.results import ABSENT, BROKEN, HOLDS, NOT_FINISHED, NOT_SHOWN, REFUSED, Result, Results
from conformance.judging.run import Run
from conformance.judging.screen import Judgement, markdown, screen
from conformance.oracle import findings as ask
from conformance.subjects.families import GENERATE, model_of

TRIM = "conformance/contracts/c1_snapshot/test_it.py::test_trim[KVCache]"
PARITY = "conformance/contracts/c4_parity/test_it.py::test_parity[llama-similar]"
PLAIN = "conformance/contracts/c4_parity/test_it.py::test_plain[llama]"
ASKED = {TRIM: "C2 trim", PARITY: "C4 parity", PLAIN: "plain decoding"}


def one(
    test: str, outcome: str, about: str = "KVCache", uses: str = "", said: str = "it said so", **notes: Any
) -> Result:
    return Result(outcome, said, asked=ASKED[test], notes={"about": about, "uses": uses, **notes})


def trim(outcome: str, **more: Any) -> Results:
    return {TRIM: one(TRIM, outcome, **more)}


def plain(outcome: str, uses: str = "llama, KVCache", **more: Any) -> Results:
    return {PLAIN: one(PLAIN, outcome, "llama", uses, **more)}


def kinds(base: Results, tree: Results) -> list[str]:
    return [group.kind for group in differences(base, tree)]


@pytest.mark.parametrize(
    ("was", "now", "kind"),
    [
        (HOLDS, HOLDS, None),
        (HOLDS, BROKEN, BROKE),
        (BROKEN, BROKEN, None),
        (REFUSED, BROKEN, BROKE),
        (ABSENT, BROKEN, BROKE),
        (BROKEN, HOLDS, MENDED),
        # C2 allows a refusal.
        (BROKEN, REFUSED, MENDED),
        (REFUSED, HOLDS, OFFERED),
        (ABSENT, HOLDS, OFFERED),
        (HOLDS, REFUSED, GONE),
        (HOLDS, ABSENT, GONE),
        (REFUSED, ABSENT, None),
        (BROKEN, ABSENT, None),
        # The same test drafted on the base, or trimmed there.
        (HOLDS, NOT_SHOWN, GONE),
        (BROKEN, NOT_SHOWN, CHANGED),
        (HOLDS, NOT_FINISHED, STOPPED),
    ],
)
def test_what_became_of_a_test(was: str, now: str, kind: str | None) -> None:
    found = differences(trim(was), trim(now))
    assert [group.kind for group in found] == ([kind] if kind else [])


def test_a_promise_of_ours_that_never_held_is_told() -> None:
    tree = trim(BROKEN)
    tree[TRIM].promised = False
    assert kinds({}, tree) == [NOT_KEPT]
    assert kinds(trim(HOLDS), tree) == [BROKE]


@pytest.mark.parametrize(
    ("now", "kind", "said"),
    [
        ({"a": "off by 0.2", "b": "lost"}, None, ""),
        ({"a": "off by 0.1", "b": "lost", "c": "token 7"}, BROKE, "c: token 7"),
        ({"a": "token 7", "b": "lost"}, BROKE, "a: token 7 (on the base: off by 0.1)"),
        ({"b": "lost"}, MENDED, ""),
        ({"b": "token 7"}, CHANGED, "b: token 7 (on the base: lost)"),
    ],
)
def test_what_fails_on_both_is_compared_by_its_cases(now: dict[str, str], kind: str | None, said: str) -> None:
    tree = trim(BROKEN, cases=now)
    assert kinds(trim(BROKEN, cases={"a": "off by 0.1", "b": "lost"}), tree) == ([kind] if kind else [])
    assert said in tree[TRIM].said


def test_what_fails_on_both_in_another_way_broke() -> None:
    assert kinds(trim(BROKEN, said="token 2"), trim(BROKEN, said="token 3")) == [BROKE]


def test_what_follows_from_a_fault_is_no_fault_of_its_own() -> None:
    (group,) = differences(trim(HOLDS) | plain(HOLDS), trim(BROKEN) | plain(BROKEN))
    assert (group.tests, group.follow) == ([TRIM], {"plain decoding": 1})
    assert kinds(trim(HOLDS) | plain(HOLDS), trim(BROKEN) | plain(BROKEN, "RotatingKVCache")) == [BROKE, BROKE]


@pytest.mark.parametrize(
    ("steps", "forwards", "said"),
    [
        ("5:aa 6:cc", 3, "the log probabilities of 1 of 2 steps are other bits"),
        ("5:aa 7:cc", 3, "another token than the base at step 1"),
        ("5:aa 6:bb", 4, "4 forward passes instead of 3"),
        ("5:aa 6:bb", 2, ""),
    ],
)
def test_plain_decoding_is_compared_with_the_base(steps: str, forwards: int, said: str) -> None:
    base, tree = plain(HOLDS, steps="5:aa 6:bb", forwards=3), plain(HOLDS, steps=steps, forwards=forwards)
    assert kinds(base, tree) == [BROKE] * bool(said)
    assert said in tree[PLAIN].said


def test_a_mend_explains_what_is_another_one_with_it() -> None:
    """Plain decoding with a mended cache differs, and what was wrong before may be refused."""
    base, tree = plain(HOLDS, steps="5:aa"), plain(HOLDS, steps="6:aa")
    assert kinds(trim(BROKEN) | base, trim(HOLDS) | tree) == [CHANGED, MENDED]
    assert kinds(trim(BROKEN) | base, trim(REFUSED) | plain(REFUSED)) == [CHANGED, MENDED]
    assert kinds(trim(HOLDS) | base, trim(HOLDS) | tree) == [BROKE]


def judgement(base: Results, tree: Results, *files: ran.File) -> Judgement:
    groups = differences(base, tree)
    return Judgement(("a", "b"), tree, groups, list(files), ["python", "-m", "pytest"], ["judge.sh", "b"])


def test_the_screen_and_the_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    base, tree = (
        {f"{test}{n}": one(test, outcome, f"{test}{n}") for test in ASKED for n in range(30)}
        for outcome in (HOLDS, BROKEN)
    )
    judged = judgement(base, tree, ran.File("generate.py", 421, 380, ["mtp_generate_step"]))
    first, second, *rest = screen(judged).splitlines()
    assert first == "Of 421 changed lines of generate.py 380 ran; `mtp_generate_step` of generate.py was never called."
    assert second.startswith("BROKEN: C2 trim, C4 parity, plain decoding.")
    assert len(rest) < 38
    assert rest[-1] == f"python -m pytest '{TRIM}0'"
    assert all(test in markdown(judged) for test in tree)
    tree[f"{TRIM}0"].differs = True
    assert screen(judged).endswith("judge.sh b --only caches")
    monkeypatch.chdir(ROOT / "docs")
    assert judged.again(f"{TRIM}1") == f"python -m pytest '../{TRIM}1'"
    assert "Nothing differs." in screen(judgement(base, base))
    assert "NO LONGER: C2 trim." in screen(judgement(trim(HOLDS), trim(REFUSED)))
    assert "NOT FINISHED: 1 tests" in screen(judgement(trim(HOLDS), trim(NOT_FINISHED)))


def test_each_file_that_is_asked_is_of_a_part() -> None:
    files = [ROOT / file for part in results.PARTS for file in results.asked_files(part)]
    rooms = (path for path in results.FOLDER.iterdir() if path.name not in ("meta", "repository", "judging"))
    tests = (path for room in rooms for path in room.rglob("test_*.py"))
    left_out = {path for path in tests if "mark.asked(" in path.read_text("utf-8")} - set(files)
    assert not left_out, f"the judge asks no part for {left_out}: add their folder to PARTS"
    assert len(set(files)) == len(files) >= 6


def fine() -> None:
    pass


@pytest.mark.planted
def test_cases_that_differ_in_a_length_only() -> None:
    ask.each([("1", fine), ("2", lambda: ask.not_shown("no"))])
    with pytest.raises(pytest.fail.Exception, match="2: refused: ValueError: no"):
        ask.each([("1", fine), ("2", lambda: ask.refused(ValueError("no")))])
    with pytest.raises(pytest.skip.Exception, match="refused: ValueError: no"):
        ask.each([("2", lambda: ask.refused(ValueError("no")))])
    with pytest.raises(pytest.fail.Exception, match="2: token 7 is lost") as error:
        ask.each([("1", fine), ("2", lambda: ask.broken("token 7 is lost"))])
    assert vars(error.value)["cases"] == {"2": "token 7 is lost"}


def covered(executed: list[int], missing: list[int], **functions: Any) -> dict[str, Any]:
    return {"executed_lines": executed, "missing_lines": missing, "functions": functions}


def test_what_of_a_tree_ran(tmp_path: Path) -> None:
    """Lines without code do not count. Of a file that was never imported nothing ran. Loops are named first."""
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, text in (
        (old, "def f():\n    return 1\n"),
        (new, 'def f():\n    """Say it."""\n    return 2\n\n\ndef g():\n    pass\n\n\ndef h():\n    yield 1\n'),
    ):
        folder.mkdir()
        (folder / "a.py").write_text(text)
    (new / "b.py").write_text("class C:\n    def __call__(self):\n        pass\n\n    def _i(self):\n        pass\n")
    never = {name: covered([], [n]) for name, n in (("", 1), ("C.__call__", 3), ("C.__call__.inner", 3), ("C._i", 6))}
    about = {
        "a.py": covered([1, 3, 6], [7, 11], f=covered([3], []), g=covered([], [7]), h=covered([], [11])),
        "b.py": covered([], [1, 2, 3, 5, 6], **never),
    }
    found = ran.looked_at(old, new, ran.changed_files(old, new), about)
    assert found == [ran.File("a.py", 4, 2, ["g", "h"], ["h"]), ran.File("b.py", 5, 0, ["C.__call__"])]
    said = "`h` of a.py, `g` of a.py, `C.__call__` of b.py were never called."
    assert ran.sentence(found) == f"Of 9 changed lines of 2 files 2 ran; {said}"
    assert ran.changed_files(new, new) == []


@pytest.mark.parametrize(
    ("tree", "uncalled", "status"),
    [
        (trim(HOLDS), [], 0),
        (trim(BROKEN), ["mtp_step"], 1),
        (trim(HOLDS), ["mtp_step"], 2),
        (trim(NOT_FINISHED), [], 2),
        ({"test_it.py::import": Result(BROKEN)}, [], 2),
    ],
)
def test_how_a_judgement_ends(tree: Results, uncalled: list[str], status: int) -> None:
    assert judge.status(judgement(trim(HOLDS), tree, ran.File("generate.py", 1, 1, uncalled))) == status


# A stand-in for the Python of a tree: its pytest reports that one test holds, then does what the tree does.
PYTEST = """#!{python}
import json, os, sys, time
from pathlib import Path
(report,) = [a.partition("=")[2] for a in sys.argv if a.startswith("--report=")]
left = [n for n in "abc" if f"--deselect={{n}}" not in sys.argv]
with open(report, "w", buffering=1) as file:
    print(json.dumps(dict(collected=dict.fromkeys(left, "C2 trim"))), file=file)
    for n in left:
        if n == "b":
            {fault}
        print(json.dumps(dict(test=n, outcome="holds", asked="C2 trim")), file=file)
"""


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("time.sleep(99)", (NOT_FINISHED, "it took more than 1 s and was stopped")),
        ("os.kill(os.getpid(), 11)", (BROKEN, "the process ends with -11 in this test")),
    ],
)
def test_what_hangs_or_dies_is_told_and_the_rest_is_asked(fault: str, said: tuple[str, str], tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(PYTEST.format(python=sys.executable, fault=fault))
    python.chmod(0o755)
    told: list[int] = []
    asked = Run(python, tmp_path / "run", tmp_path, limit=1, say=lambda part, results, n: told.append(len(results)))
    found = asked.ask(["caches"])
    assert {test: (one.outcome, one.said) for test, one in found.items()} == {
        "a": (HOLDS, ""),
        "b": said,
        "c": (HOLDS, ""),
    }
    assert max(told) == 3


def test_a_tree_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    python = tmp_path / "python"
    hangs = 'case "$*" in *server.jsonl*) echo begun; exec sleep 99;; esac'
    python.write_text(f"#!/bin/sh\n{hangs}\nsleep 1\necho 'E   ImportError: no name tune'\nexit 4\n")
    python.chmod(0o755)
    with pytest.raises(run.NotAsked, match=r"^ImportError: no name tune$"):
        Run(python, tmp_path / "run", tmp_path).ask(["caches", "server"])
    # What still runs then is ended.
    assert (tmp_path / "run" / "server.log").read_text() == "begun\n"


def test_the_results_of_a_base_are_kept_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, suite, times = tmp_path / "mlx_lm", tmp_path / "conformance", list[str]()
    (tmp_path / "run").mkdir()
    asked = Run(Path(sys.executable), tmp_path / "run", package)

    def ask_it(self: Run, part: str, *_: Any) -> Results:
        times.append(part)
        return trim(HOLDS)

    monkeypatch.setattr(Run, "_ask", ask_it)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    for _ in range(2):
        assert asked.ask_once(["caches"], tmp_path / "kept") == trim(HOLDS)
    assert times == ["caches"]
    asked.ask_once(["caches", "server"], tmp_path / "kept")
    assert times == ["caches", "server"]
    for changed in (package / "a.py", suite / "0.32.2-stock.txt", suite / "models.json"):
        changed.parent.mkdir(exist_ok=True)
        changed.write_text("2")
        times.clear()
        asked.ask_once(["caches"], tmp_path / "kept")
        assert times == ["caches"], changed


def git(where: Path, *args: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], cwd=where, check=True)


def commit(where: Path, name: str) -> str:
    (where / name).write_text(name)
    git(where, "add", "-A")
    git(where, "commit", "--quiet", "--message", name)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=where, capture_output=True, text=True)
    return f"{head.stdout[:12]}"


def test_the_base_of_a_branch_is_where_it_began(tmp_path: Path) -> None:
    """The newest such commit: a fork's own main may be old."""
    upstream, fork = tmp_path / "upstream", tmp_path / "fork"
    upstream.mkdir()
    git(upstream, "init", "--quiet", "--initial-branch", "main")
    commit(upstream, "released")
    git(upstream, "tag", "v0.33.0")
    git(tmp_path, "clone", "--quiet", str(upstream), "fork")
    start = commit(upstream, "later")
    git(fork, "fetch", "--quiet", "origin")
    git(fork, "checkout", "--quiet", "-b", "mine", "origin/main")
    commit(fork, "change")
    assert base_of(f"{fork}@mine") == f"{fork}@{start}"
    assert base_of(str(fork)) == f"{fork}@{start}"
    assert base_of(f"{upstream}@main") == f"{upstream}@v0.33.0"
    git(fork, "remote", "remove", "origin")
    assert base_of(f"{fork}@mine", upstream) == f"{fork}@{start}"


PAGE = (ROOT / "docs" / "releases.md").read_text()


def test_the_commands_of_the_page_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = re.findall(r"scripts/judge\.sh (.*)", PAGE)
    assert any("GITHUB_BASE_REF" in line for line in lines), "the workflow judges nothing"
    for line in lines:
        monkeypatch.setattr(sys, "argv", ["judge.py", *shlex.split(line, comments=True)])
        assert judge.parse_args().tree


def test_an_adapter_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    for text, said in (
        ("from mlx_lm.generate import no_such_step", "cannot import name 'no_such_step'"),
        ("def decode(:", "cannot be imported here"),
        ("DRAFTER = ('a',)\ndef trim(caches, n): ...", "mine has DRAFTER; what it may have is"),
        ("x = 1", "mine offers nothing"),
    ):
        file.write_text(text)
        with pytest.raises(Unusable, match=said):
            load(str(file))
    with pytest.raises(Unusable, match="is no file and no adapter of the suite"):
        load(str(tmp_path / "other.py"))


def test_several_adapters_of_one_tree(tmp_path: Path) -> None:
    """Each drafter is called through its own; a command whose parser lacks the option is left out."""
    (tmp_path / "mine.py").write_text(
        "DRAFTERS = ('new',)\nOPTIONS = ('sampler',)\ndef decode(*_, **__): return 'mine'\n"
        "COMMANDS = {'generate': ['--no-such-option'], 'chat': ['--max-tokens', '5']}\n"
        "MODELS = {'brought': {'vocab_size': 64}}\n"
    )
    both = Adapters([load(str(tmp_path / "mine.py")), load("stock")])
    assert list(both.drafters)[:3] == ["new", "similar", "contrary"]
    assert both.options("new") == {"sampler"}
    assert both.decode(None, [1], adapters.Drafts("new", [1])) == "mine"
    assert set(both.commands) == {"chat", "server"}
    assert both.models == {"brought": {"vocab_size": 64}}
    assert "trim" in both


def test_the_adapter_of_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"^    import copy\n(?:    .*\n|\n)+", PAGE.split("## An adapter")[1], re.MULTILINE)
    assert code
    (tmp_path / "mine.py").write_text(textwrap.dedent(code[0]))
    with pytest.raises(Unusable, match="cannot import name 'lookahead_step'"):
        load(str(tmp_path / "mine.py"))
    monkeypatch.setattr(GENERATE, "lookahead_step", lambda *_, **__: iter([(1, None, True)]), raising=False)
    mine = load(str(tmp_path / "mine.py"))
    assert all(name in str(adapters.__doc__) for name in NAMES)
    assert offered(mine) == NAMES - {"fits", "MODELS", "stream"}
    assert list(Adapters([mine]).decode(None, [1], adapters.Drafts("lookup", [1]))) == [(1, None, True)]


def test_a_draft_model_that_is_made_leaves_the_draws_of_a_seed() -> None:
    """The first decode with it makes it, after the seed is set."""
    model = model_of("llama").model
    mx.random.seed(7)
    right = mx.random.normal((4,))
    mx.random.seed(7)
    adapters.similar(model)
    assert mx.array_equal(mx.random.normal((4,)), right)
