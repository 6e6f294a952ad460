"""Compare and show judged trees, load adapters, and tell what of a tree ran."""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import judge
import pytest
from environments import base_of

from conformance import ROOT, adapters
from conformance.adapters import NAMES, Adapters, Unusable, load, offered
from conformance.judging.difference import BROKE, CHANGED, GONE, MENDED, NOT_KEPT, OFFERED, STOPPED, differences
from conformance.judging.ran import File, changed_files, looked_at, sentence
from conformance.judging.results import (
    ABSENT,
    BROKEN,
    HOLDS,
    NOT_FINISHED,
    NOT_SHOWN,
    PARTS,
    REFUSED,
    Result,
    Results,
    asked_files,
)
from conformance.judging.run import NotAsked, Run
from conformance.judging.screen import Judgement
from conformance.repository.clones import git

TRIM = "conformance/caches/test_it.py::test_trim[KVCache]"
PLAIN = "conformance/contracts/test_it.py::test_plain[llama]"


def trim(outcome: str, said: str = "token 2", promised: bool = True, **cases: str) -> Results:
    return {TRIM: Result(outcome, said, asked="C2 trim", promised=promised, notes={"about": "KVCache", "cases": cases})}


def plain(outcome: str, steps: str = "5:aa 6:bb", forwards: int = 3, uses: str = "llama, KVCache") -> Results:
    notes = {"about": "llama", "uses": uses, "steps": steps, "forwards": forwards}
    return {PLAIN: Result(outcome, asked="plain decoding", notes=notes)}


def judgement(base: Results, tree: Results, *files: File) -> Judgement:
    return Judgement(("a", "b"), tree, differences(base, tree), list(files), ["python", "-m", "pytest"], ["judge.sh"])


BOTH = trim(BROKEN, a="off by 0.1", b="lost")


@pytest.mark.parametrize(
    ("base", "tree", "kinds", "said", "status"),
    [
        (trim(HOLDS), trim(HOLDS), [], "Nothing differs.", 0),
        (trim(HOLDS), trim(BROKEN), [BROKE], "BROKEN: C2 trim.", 1),
        (trim(BROKEN), trim(BROKEN), [], "Nothing differs.", 0),
        ({}, trim(BROKEN), [BROKE], "BROKEN: C2 trim.", 1),
        (trim(BROKEN), trim(HOLDS), [MENDED], "Nothing broke.", 0),
        # C2 allows a refusal.
        (trim(BROKEN), trim(REFUSED), [MENDED], "Nothing broke.", 0),
        (trim(REFUSED), trim(HOLDS), [OFFERED], "| offered now  | C2 trim ", 0),
        (trim(HOLDS), trim(REFUSED), [GONE], "NO LONGER: C2 trim.", 1),
        # The same test drafted on the base, or trimmed there.
        (trim(HOLDS), trim(NOT_SHOWN), [GONE], "NO LONGER: C2 trim.", 1),
        (trim(BROKEN), trim(NOT_SHOWN), [CHANGED], "Nothing broke.", 0),
        (trim(HOLDS), trim(NOT_FINISHED), [STOPPED], "NOT FINISHED: 1 tests", 2),
        (trim(NOT_FINISHED), trim(BROKEN), [STOPPED], "NOT FINISHED: 1 tests", 2),
        # A promise of ours that never held is told.
        ({}, trim(BROKEN, promised=False), [NOT_KEPT], "Nothing broke.", 0),
        (trim(HOLDS), trim(BROKEN, promised=False), [BROKE], "BROKEN: C2 trim.", 1),
        # What fails on both is compared by its cases, or by what it says.
        (trim(BROKEN), trim(BROKEN, "token 3"), [BROKE], "token 3 (on the base: token 2)", 1),
        (BOTH, trim(BROKEN, a="off by 0.2", b="lost"), [], "Nothing differs.", 0),
        (BOTH, trim(BROKEN, a="off by 0.1", b="lost", c="token 7"), [BROKE], "c: token 7", 1),
        (BOTH, trim(BROKEN, a="token 7", b="lost"), [BROKE], "a: token 7 (on the base: off by 0.1)", 1),
        (BOTH, trim(BROKEN, b="lost"), [MENDED], "Nothing broke.", 0),
        (BOTH, trim(BROKEN, b="token 7"), [CHANGED], "Nothing broke.", 0),
        # What follows from a fault is no fault of its own.
        (trim(HOLDS) | plain(HOLDS), trim(BROKEN) | plain(BROKEN), [BROKE], "KVCache; 1 of plain decoding follow", 1),
        (trim(HOLDS) | plain(HOLDS), trim(BROKEN) | plain(BROKEN, uses="a ring"), [BROKE, BROKE], "| llama |", 1),
        # Plain decoding is compared with the base, which a mend explains.
        (plain(HOLDS), plain(HOLDS, "5:aa 6:cc"), [BROKE], "of 1 of 2 steps are other bits than on the base", 1),
        (plain(HOLDS), plain(HOLDS, "5:aa 7:cc"), [BROKE], "judge.sh --only decoding", 1),
        (plain(HOLDS), plain(HOLDS, forwards=4), [BROKE], "4 forward passes instead of 3", 1),
        (trim(BROKEN) | plain(HOLDS), trim(HOLDS) | plain(HOLDS, "6:a 6:b"), [CHANGED, MENDED], "Nothing broke.", 0),
        (trim(BROKEN) | plain(HOLDS), trim(REFUSED) | plain(REFUSED), [CHANGED, MENDED], "Nothing broke.", 0),
        # A file that needs a name which the tree lacks; a test that ends its process.
        ({}, {"test_it.py::import": Result(ABSENT)}, [], "Nothing differs.", 2),
        (trim(HOLDS), {TRIM: Result(BROKEN, "worker crashed")}, [BROKE], "BROKEN: C2 trim.", 1),
    ],
)
def test_a_judgement(base: Results, tree: Results, kinds: list[str], said: str, status: int) -> None:
    judged = judgement(base, tree)
    assert [group.kind for group in judged.groups] == kinds
    assert said in judged.screen()
    assert said.partition(" (on")[0] in judged.markdown()
    assert judge.status(judged) == status


def test_the_screen_and_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen has the first lines. What was never called is told first, and is no pass."""
    monkeypatch.chdir(ROOT / "docs")
    trims, file = [TRIM.replace("]", f"{n}]") for n in range(30)], File("generate.py", 421, 380, [(0, "mtp_step")])
    tree = {test: Result(BROKEN, "lost", "1\n" * 99, "Wrong: so.", f"C2 {n}") for n, test in enumerate(trims)}
    judged = judgement(dict.fromkeys(trims, Result(HOLDS)), tree, file)
    first, *_, last = judged.screen().splitlines()
    assert first == "Of 421 changed lines of generate.py 380 ran; never called: `mtp_step` of generate.py."
    assert last == f"    python -m pytest '../{trims[0]}'"
    assert len(judged.screen().splitlines()) < 40
    assert "The release fails this test too. Wrong: so." in judged.screen()
    assert "The release fails" not in judgement({}, tree).screen()
    assert all(f"pytest '../{test}'" in judged.markdown() for test in trims)
    assert judge.status(judgement({}, {}, file)) == 2


def test_each_file_that_is_asked_is_of_a_part() -> None:
    rooms = (path for path in (ROOT / "conformance").iterdir() if path.name not in ("repository", "judging"))
    tests = {path for room in rooms for path in room.rglob("test_*.py") if "mark.asked(" in path.read_text("utf-8")}
    left_out = tests - {ROOT / file for file in asked_files(list(PARTS))}
    assert len(tests) >= 6
    assert not left_out, f"the judge asks no part for {left_out}: add their folder to PARTS"


def test_what_of_a_tree_ran(tmp_path: Path) -> None:
    """Lines without code do not count, and of a statement its first. Loops are named first, and no inner function."""
    texts = {
        "old/a.py": "def f():\n    return (\n        1)\n",
        "new/a.py": "def f():\n    return (\n        2)\n\n\ndef g():\n    pass\n\n\ndef h():\n    yield 1\n",
        "new/b.py": "class C:\n    def __call__(self):\n        pass\n\n    def _i(self):\n        pass\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    ran = {name: {"executed_lines": [], "missing_lines": [n]} for name, n in (("g", 7), ("h", 11))}
    never = {name: {"executed_lines": [], "missing_lines": [n]} for name, n in (("C.__call__", 3), ("C._i", 6))}
    about = {
        "a.py": {"executed_lines": [1, 2, 6], "missing_lines": [7, 11], "functions": ran},
        "b.py": {"executed_lines": [], "missing_lines": [1, 2, 3, 5, 6], "functions": never},
    }
    old, new = tmp_path / "old", tmp_path / "new"
    found = looked_at(old, new, changed_files(old, new), about)
    assert found == [File("a.py", 4, 2, [(0, "h"), (1, "g")]), File("b.py", 5, 0, [(1, "C.__call__")])]
    said = "never called: `h` of a.py, `g` of a.py, `C.__call__` of b.py."
    assert sentence(found) == f"Of 9 changed lines of 2 files 2 ran; {said}"
    assert changed_files(new, new) == []
    assert changed_files(new, old) == ["a.py", "b.py"], "a file that went is a change"


ASKED = """
import os, pytest, time

@pytest.mark.asked('C2 trim')
@pytest.mark.parametrize("how", ["hangs", "hangs inside", "dies", "holds"])
def test_it(how):
    try:
        while "hangs" in how:
            time.sleep(0.1)
    except BaseException as error:
        # As hypothesis may do.
        raise AssertionError if "inside" in how else error
    os.abort() if how == "dies" else None
"""


def test_what_hangs_or_dies_is_told_and_the_rest_is_asked(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(ASKED)
    asked = [str(tmp_path / "test_it.py"), f"--confcutdir={ROOT}", "-p", "conformance.conftest"]
    found = Run(Path(sys.executable), tmp_path, tmp_path, limit=1).ask(asked)
    assert [one.outcome for one in found.values()] == [NOT_FINISHED, NOT_FINISHED, BROKEN, HOLDS]
    assert next(iter(found.values())).said.endswith("it took more than 1 s and was stopped")
    with pytest.raises(NotAsked, match="ends with 4"):
        Run(Path(sys.executable), tmp_path, tmp_path, ["no_such_adapter"]).ask(["conformance/caches"])


def test_the_results_of_a_base_are_kept_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, file, seen = Run(Path(sys.executable), tmp_path, tmp_path / "mlx_lm"), tmp_path / "mlx_lm/a.py", list[str]()

    def ask(self: Run, tests: list[str]) -> None:
        seen.append(file.read_text())
        (tmp_path / "asked.jsonl").write_text('{"test": "a", "outcome": "holds"}\n')

    monkeypatch.setattr(Run, "ask", ask)
    file.parent.mkdir()
    for text in ("1", "2"):
        file.write_text(text)
        for _ in range(2):
            assert asked.ask_once(["caches"], tmp_path / "kept") == {"a": Result(HOLDS)}
    assert seen == ["1", "2"]


def test_a_file_that_is_gone_needs_no_report(tmp_path: Path) -> None:
    assert Run(Path(sys.executable), tmp_path, tmp_path).covered(["models/mamba.py"]) == {}


def commit(where: Path, name: str) -> str:
    (where / name).write_text(name)
    git(where, "add", "-A")
    git(where, "commit", "--quiet", "--message", name)
    return git(where, "rev-parse", "HEAD")[:12]


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


def test_the_adapter_of_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"^    import copy\n(?:    .*\n|\n)+", PAGE.split("## An adapter")[1], re.MULTILINE)
    assert code
    (tmp_path / "mine.py").write_text(textwrap.dedent(code[0]))
    with pytest.raises(Unusable, match="cannot import name 'lookahead_step'"):
        load(str(tmp_path / "mine.py"))
    monkeypatch.setattr(
        sys.modules["mlx_lm.generate"], "lookahead_step", lambda *_, **__: iter([(1, None, True)]), raising=False
    )
    mine = load(str(tmp_path / "mine.py"))
    assert all(name in str(adapters.__doc__) for name in NAMES)
    assert offered(mine) == NAMES - {"fits", "stream"}
    assert list(Adapters([mine]).decode(None, [1], adapters.Drafts("lookup", [1]))) == [(1, None, True)]


def test_the_adapter_of_published_experiments_names_what_a_tree_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that names both ways to draft, and a generator with a backend, as their pull requests have them."""
    generate, plain = sys.modules["mlx_lm.generate"], adapters.Drafts("", [1])

    def stream_generate(*_: Any, draft_type: Any = None, prompt_lookup_num_tokens: Any = None, **more: Any) -> Any:
        token = draft_type or prompt_lookup_num_tokens
        yield SimpleNamespace(token=token, logprobs=more["max_tokens"], from_draft=True)

    def prompt_lookup_generate_step(*_: Any, backend: Literal["tree"] = "tree", num_draft_tokens: int = 1) -> Any:
        yield 7, backend, num_draft_tokens

    for function in (stream_generate, prompt_lookup_generate_step):
        monkeypatch.setattr(generate, function.__name__, function)
    published = importlib.reload(load("published"))
    found = {}
    for name in published.DRAFTERS:
        options = {} if name == "tree" else {"max_tokens": 5}
        found[name] = list(published.decode(None, [1], replace(plain, name=name), **options))
    named = {name: [(name, 5, True)] for name in ("ngram-simple", "ngram-mod")}
    assert found == {"lookup": [(3, 5, True)], "tree": [(7, "tree", 3)]} | named
