"""Compare and show judged trees, load adapters, and tell what of a tree ran."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import judge
import mlx.core as mx
import pytest
from environments import base_of

from conformance import ROOT, adapters
from conformance.adapters import NAMES, SHIPPED, Adapters, Unusable, load, offered
from conformance.judging import programs, ran, results, run
from conformance.judging.difference import (
    BAD,
    BROKE,
    GONE,
    MENDED,
    NOT_KEPT,
    OFFERED,
    compared,
    differences,
    kind_of,
    red,
)
from conformance.judging.results import ABSENT, ASKED, BROKEN, HOLDS, NOT_SHOWN, PARTS, REFUSED, Result, Results
from conformance.judging.run import Run
from conformance.judging.screen import Judgement, markdown, screen
from conformance.oracle import findings as ask
from conformance.subjects.families import GENERATE, model_of

TRIM, PARITY, PLAIN = (
    f"conformance/contracts/{where}::{name}"
    for where, name in (
        ("c1_snapshot/test_through_adapter.py", "test_trim[KVCache]"),
        ("c4_parity/test_through_adapter.py", "test_parity[llama-similar]"),
        ("c4_parity/test_through_adapter.py", "test_plain[llama]"),
    )
)


def one(outcome: str, about: str = "KVCache", uses: str = "", **notes: str) -> Result:
    return Result(outcome, "it said so", "caches = [KVCache()]\nfeed(1)", {"about": about, "uses": uses, **notes})


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
        (HOLDS, NOT_SHOWN, None),
    ],
)
def test_what_became_of_a_test(was: str, now: str, kind: str | None) -> None:
    found = differences({TRIM: one(was)}, {TRIM: one(now)})
    assert [group.kind for group in found] == ([kind] if kind else [])
    assert red(found) == (kind in BAD)


def test_a_promise_of_ours_that_never_held_is_told() -> None:
    assert kind_of(ABSENT, BROKEN, promised=False) == NOT_KEPT
    assert kind_of(HOLDS, BROKEN, promised=False) == BROKE
    assert NOT_KEPT not in BAD


def test_what_follows_from_a_fault_is_no_fault_of_its_own() -> None:
    base = {TRIM: one(HOLDS), PARITY: one(HOLDS, "llama", "llama, KVCache")}
    tree = {TRIM: one(BROKEN), PARITY: one(BROKEN, "llama", "llama, KVCache")}
    (group,) = differences(base, tree)
    assert (group.tests, group.follow) == ([TRIM], {"C4 parity": 1})
    tree[PARITY] = one(BROKEN, "llama", "llama, RotatingKVCache")
    assert len(differences(base, tree)) == 2


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"steps": "5:aa 6:cc", "forwards": "3"}, "the log probabilities of 1 of 2 steps are other bits"),
        ({"steps": "5:aa 7:cc", "forwards": "3"}, "another token than the base at step 1"),
        ({"steps": "5:aa 6:bb", "forwards": "4"}, "4 forward passes instead of 3"),
        ({"steps": "5:aa 6:bb", "forwards": "2"}, ""),
    ],
)
def test_plain_decoding_is_compared_with_the_base(now: dict[str, str], said: str) -> None:
    tree = {PLAIN: Result(HOLDS, notes={"about": "llama", **now})}
    compared({PLAIN: one(HOLDS, steps="5:aa 6:bb", forwards="3")}, tree)
    assert tree[PLAIN].outcome == (BROKEN if said else HOLDS)
    assert said in tree[PLAIN].said


def judgement(base: Results, tree: Results, files: list[ran.File]) -> Judgement:
    groups = differences(base, tree)
    return Judgement(("a", "b"), base, tree, groups, files, ["python", "-m", "pytest"], ["judge.sh", "b"])


def test_the_screen_and_the_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    tests = [f"{test}{n}" for test in (TRIM, PARITY, PLAIN) for n in range(30)]
    base, tree = ({test: one(outcome, test[-9:]) for test in tests} for outcome in (HOLDS, BROKEN))
    judged = judgement(base, tree, [ran.File("generate.py", 421, 380, ["mtp_generate_step"])])
    first, second, *rest = screen(judged).splitlines()
    assert first == "Of 421 changed lines of generate.py 380 ran; `mtp_generate_step` of generate.py was never called."
    assert second.startswith("BROKEN: C2 trim, plain decoding, C4 parity.")
    assert len(rest) < 38
    assert rest[-1] == f"python -m pytest '{tests[0]}'"
    assert all(test in markdown(judged) for test in tests)
    tree[tests[0]].differs = True
    assert screen(judged).endswith("judge.sh b --only caches")
    monkeypatch.chdir(ROOT / "docs")
    assert judged.again(tests[1]) == f"python -m pytest '../{tests[1]}'"
    assert "Nothing differs." in screen(judgement(base, base, []))


def test_what_pytest_wrote(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\nfrom conformance.oracle import findings as ask\n"
        "def test_holds(record_property): record_property('about', 'it')\n"
        "def test_broken(): ask.broken('token 7 is lost', 'print(7)')\n"
        "def test_raises(): raise KeyError('no')\n"
        "def test_refused(): ask.refused(ValueError('no'))\n"
        "def test_not_offered(): ask.not_offered('no')\n"
        "def test_not_shown(): ask.not_shown('no')\n"
        "@pytest.mark.xfail(reason='Refused: it says so')\ndef test_expected(): assert False\n"
        "@pytest.mark.xfail(strict=True)\ndef test_mended(): pass\n"
        "@pytest.fixture\ndef wrong(): ask.broken('no start')\n"
        "def test_start(wrong): pass\n"
    )
    file = tmp_path / "out.xml"
    command = [sys.executable, "-m", "pytest", "test_it.py", "-p", "no:cacheprovider", f"--junit-xml={file}"]
    env = {"PYTHONPATH": str(ROOT)}
    subprocess.run([*command, "-o", "junit_family=xunit1"], cwd=tmp_path, env=env, capture_output=True)
    found = {test.partition("::test_")[2]: result for test, result in results.read(file).items()}
    outcomes = {name: (result.outcome, result.said, result.lines) for name, result in found.items()}
    assert outcomes == {
        "holds": (HOLDS, "", ""),
        "broken": (BROKEN, "token 7 is lost", "print(7)"),
        "raises": (BROKEN, "KeyError: 'no'", ""),
        "refused": (REFUSED, "ValueError: no", ""),
        "not_offered": (ABSENT, "no", ""),
        "not_shown": (NOT_SHOWN, "no", ""),
        "expected": (REFUSED, "Refused: it says so", ""),
        "mended": (HOLDS, "", ""),
        "start": (BROKEN, "no start", ""),
    }
    assert found["holds"].notes == {"about": "it"}


def test_each_test_that_is_asked_has_a_contract() -> None:
    made = set()
    for part in PARTS:
        for name in re.findall(r"^def (test_\w+)", (ROOT / results.file_of(part)).read_text(), re.MULTILINE):
            made.add(results.function(f"{results.file_of(part)}::{name}[x]"))
    assert made == set(ASKED)


def fine() -> None:
    pass


@pytest.mark.planted
def test_cases_that_differ_in_a_length_only() -> None:
    ask.each([("1", fine), ("2", lambda: ask.not_shown("no"))])
    with pytest.raises(pytest.fail.Exception, match="2: refused: ValueError: no"):
        ask.each([("1", fine), ("2", lambda: ask.refused(ValueError("no")))])
    with pytest.raises(pytest.skip.Exception, match="refused: ValueError: no"):
        ask.each([("2", lambda: ask.refused(ValueError("no")))])
    with pytest.raises(pytest.fail.Exception, match="2: token 7 is lost"):
        ask.each([("1", fine), ("2", lambda: ask.broken("token 7 is lost"))])


def test_the_lines_of_a_program_run_without_the_suite(tmp_path: Path) -> None:
    stock = Adapters([load("stock")])
    played = [
        ("feed", 2),
        ("snapshot", 0),
        ("feed", 1),
        ("restore", 0),
        ("feed", 3),
        ("trim", 2),
        ("filter", 1),
        ("feed", 1),
    ]
    (kind,) = (kind for kind in programs.KINDS if kind.name == "BatchKVCache")
    text = programs.lines(kind, played, stock, "it is wrong")
    assert "conformance" not in text
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("see") == 4
    assert "trim returns 2" in done.stdout


def test_what_of_a_tree_ran(tmp_path: Path) -> None:
    """Lines without code do not count. Of a file that was never imported nothing ran."""
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, text in (
        (old, "def f():\n    return 1\n"),
        (new, 'def f():\n    """Say it."""\n    return 2\n\n\ndef g():\n    pass\n'),
    ):
        folder.mkdir()
        (folder / "a.py").write_text(text)
    (new / "b.py").write_text("class C:\n    def __call__(self):\n        pass\n\n    def _i(self):\n        pass\n")

    def covered(executed: list[int], missing: list[int], **functions: Any) -> dict[str, Any]:
        return {"executed_lines": executed, "missing_lines": missing, "functions": functions}

    about = {
        "a.py": covered([1, 3, 6], [7], f=covered([3], []), g=covered([], [7])),
        "b.py": covered(
            [],
            [1, 2, 3, 5, 6],
            **{
                name: covered([], [n]) for name, n in (("", 1), ("C.__call__", 3), ("C.__call__.inner", 3), ("C._i", 6))
            },
        ),
    }
    found = ran.looked_at(old, new, about)
    assert found == [ran.File("a.py", 3, 2, ["g"]), ran.File("b.py", 5, 0, ["C.__call__"])]
    said = "`g` of a.py, `C.__call__` of b.py were never called."
    assert ran.sentence(found) == f"Of 8 changed lines of 2 files 2 ran; {said}"
    assert ran.changed_files(new, new) == []


@pytest.mark.parametrize(
    ("outcome", "executed", "code", "said"),
    [
        (HOLDS, [4], 0, "each changed public function was called.\nNothing differs."),
        (BROKEN, [4], 1, "BROKEN: C2 trim."),
        (HOLDS, [], 2, "`mtp_step` of generate.py was never called."),
        (BROKEN, [], 1, "`mtp_step` of generate.py was never called.\nBROKEN: C2 trim."),
    ],
)
def test_how_a_judgement_ends(
    outcome: str,
    executed: list[int],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def at(name: str) -> SimpleNamespace:
        return SimpleNamespace(python=tmp_path / "python", folder=tmp_path / name, package=tmp_path / name / "mlx_lm")

    for name, text in (("base", ""), ("mine", "import mlx\n\ndef mtp_step():\n    yield 1\n")):
        at(name).package.mkdir(parents=True)
        (at(name).package / "generate.py").write_text(text)
    lines = {"executed_lines": executed, "missing_lines": [n for n in [4] if n not in executed]}
    monkeypatch.setattr(judge, "environment", at)
    monkeypatch.setattr(judge, "base_of", lambda _: "base")
    monkeypatch.setattr(judge, "alone", nullcontext)
    monkeypatch.setattr(judge, "JUDGED", tmp_path)
    monkeypatch.setattr(Run, "ask_once", lambda *_: {TRIM: one(HOLDS)})
    monkeypatch.setattr(Run, "ask", lambda *_, **__: {TRIM: one(outcome)})
    monkeypatch.setattr(Run, "covered", lambda *_: {"generate.py": {**lines, "functions": {"mtp_step": lines}}})
    monkeypatch.setattr(sys, "argv", ["judge.py", "mine"])
    assert judge.main() == code
    printed = capsys.readouterr().out
    assert said in printed
    assert len(printed.splitlines()) <= 40


def test_the_results_of_a_base_are_kept_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, suite, times = tmp_path / "mlx_lm", tmp_path / "conformance", list[str]()
    asked = Run(Path(sys.executable), tmp_path / "kept", package)

    def ask_it(self: Run, part: str, *_: Any) -> Results:
        times.append(part)
        (tmp_path / "kept" / f"{part}.xml").write_text(
            "<a><testcase name='test' classname='test_through_adapter'/></a>"
        )
        return {}

    monkeypatch.setattr(Run, "_ask", ask_it)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    for _ in range(2):
        asked.ask_once(["caches"])
    assert times == ["caches"]
    assert set(asked.ask_once(["caches", "server"])) == {"test_through_adapter.py::test"}
    for changed in (package / "a.py", suite / "0.32.2-stock.txt", suite / "models.json"):
        changed.parent.mkdir(exist_ok=True)
        changed.write_text("2")
        times.clear()
        asked.ask_once(["caches"])
        assert times == ["caches"], changed


def test_what_an_interrupted_run_covered_is_forgotten(tmp_path: Path) -> None:
    left = tmp_path / "coverage" / "data.1"
    left.parent.mkdir()
    left.write_text("what ran then")
    Run(Path(sys.executable), tmp_path, tmp_path / "mlx_lm").ask([], coverage=True)
    assert not left.exists()


def test_the_base_of_a_branch_is_where_it_began(tmp_path: Path) -> None:
    def git(*args: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], cwd=tmp_path, check=True)

    def commit(name: str) -> str:
        (tmp_path / name).write_text(name)
        git("add", "-A")
        git("commit", "--quiet", "--message", name)
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True)
        return f"{tmp_path}@{head.stdout[:12]}"

    git("init", "--quiet", "--initial-branch", "main")
    commit("released")
    git("tag", "v0.33.0")
    start = commit("later")
    git("checkout", "--quiet", "-b", "mine")
    commit("change")
    assert base_of(f"{tmp_path}@mine") == base_of(str(tmp_path)) == start
    assert base_of(f"{tmp_path}@main") == f"{tmp_path}@v0.33.0"


PAGE = (ROOT / "docs" / "releases.md").read_text()


def test_the_commands_of_the_page_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = re.findall(r"scripts/judge\.sh (.*)", PAGE)
    assert any("GITHUB_BASE_REF" in line for line in lines), "the workflow judges nothing"
    for line in lines:
        monkeypatch.setattr(sys, "argv", ["judge.py", *shlex.split(line, comments=True)])
        assert judge.parse_args().tree


@pytest.mark.parametrize("name", SHIPPED)
def test_the_adapters_of_the_suite_can_be_loaded(name: str) -> None:
    assert offered(load(name))


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
    assert list(both.drafters) == ["new", "similar", "contrary"]
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
    assert offered(mine) == NAMES - {"fits", "MODELS"}
    assert list(Adapters([mine]).decode(None, [1], adapters.Drafts("lookup", [1]))) == [(1, None, True)]


def test_the_interface_is_described() -> None:
    described = str(adapters.__doc__)
    assert all(name in described for name in NAMES)


def test_a_draft_model_that_is_made_leaves_the_draws_of_a_seed() -> None:
    """The first decode with it makes it, after the seed is set."""
    model = model_of("llama").model
    mx.random.seed(7)
    right = mx.random.normal((4,))
    mx.random.seed(7)
    adapters.similar(model)
    assert mx.array_equal(mx.random.normal((4,)), right)
