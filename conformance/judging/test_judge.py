"""Compare and show judged trees, and tell what of a tree ran. What is planted in a tree is found."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from environments import base_of

from conformance import ROOT, adapters
from conformance.adapters import MAY_HAVE, Unusable, load
from conformance.faults import FOLDER, Fault, plant, read
from conformance.judging.changes import Change, change, changed_files, sentence
from conformance.judging.difference import BROKE, CHANGED, GONE, MENDED, NOT_KEPT, OFFERED, STOPPED, differences
from conformance.judging.results import (
    ABSENT,
    BROKEN,
    HOLDS,
    INCONCLUSIVE,
    NOT_FINISHED,
    PARTS,
    REFUSED,
    Result,
    Results,
    asked_files,
)
from conformance.judging.run import Asked, NotAsked
from conformance.judging.screen import Judgement
from conformance.pages import block
from conformance.repository.clones import git
from conformance.series.patches import commits, unpack

TRIM = "conformance/caches/test_it.py::test_trim[KVCache]"
PLAIN = "conformance/contracts/test_it.py::test_plain[llama]"


def trim(outcome: str, message: str = "token 2", ours: bool = False, **cases: str) -> Results:
    return {TRIM: Result(outcome, message, asked="C2 trim", ours=ours, about="KVCache", cases=cases)}


def plain(outcome: str, steps: str = "5:aa 6:bb", forwards: str = "3", uses: str = "llama, KVCache") -> Results:
    asked = "plain decoding"
    return {PLAIN: Result(outcome, asked=asked, about="llama", uses=uses, steps=steps, forwards=forwards)}


def judgement(base: Results, tree: Results, *changes: Change) -> Judgement:
    return Judgement(("a", "b"), tree, differences(base, tree), list(changes), ["python", "-m", "pytest"], ["judge.sh"])


BOTH = trim(BROKEN, a="off by 0.1", b="lost")


@pytest.mark.parametrize(
    ("base", "tree", "kinds", "message", "status"),
    [
        (trim(HOLDS), trim(HOLDS), [], "Nothing differs.", 0),
        (trim(HOLDS), trim(BROKEN), [BROKE], "BROKEN: C2 trim.", 1),
        (trim(BROKEN), trim(BROKEN), [], "Nothing differs.", 0),
        ({}, trim(BROKEN), [BROKE], "BROKEN: C2 trim.", 1),
        (trim(BROKEN), trim(HOLDS), [MENDED], "Nothing broke.", 0),
        # C2 allows a refusal.
        (trim(BROKEN), trim(REFUSED), [MENDED], "Nothing broke.", 0),
        (trim(REFUSED), trim(HOLDS), [OFFERED], "| offered now | C2 trim |", 0),
        (trim(HOLDS), trim(REFUSED), [GONE], "NO LONGER: C2 trim.", 1),
        # The same test drafted on the base, or trimmed there.
        (trim(HOLDS), trim(INCONCLUSIVE), [GONE], "NO LONGER: C2 trim.", 1),
        (trim(BROKEN), trim(INCONCLUSIVE), [CHANGED], "Nothing broke.", 0),
        (trim(HOLDS), trim(NOT_FINISHED), [STOPPED], "NOT FINISHED: 1 tests", 2),
        (trim(NOT_FINISHED), trim(BROKEN), [STOPPED], "NOT FINISHED: 1 tests", 2),
        # What only this repository promises, and never held, is no fault.
        ({}, trim(BROKEN, ours=True), [NOT_KEPT], "Nothing broke.", 0),
        (trim(HOLDS), trim(BROKEN, ours=True), [BROKE], "BROKEN: C2 trim.", 1),
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
        (plain(HOLDS), plain(HOLDS, forwards="4"), [BROKE], "4 forward passes instead of 3", 1),
        (trim(BROKEN) | plain(HOLDS), trim(HOLDS) | plain(HOLDS, "6:a 6:b"), [CHANGED, MENDED], "Nothing broke.", 0),
        (trim(BROKEN) | plain(HOLDS), trim(REFUSED) | plain(REFUSED), [CHANGED, MENDED], "Nothing broke.", 0),
        # A file that needs a name which the tree lacks; a test that ends its process.
        ({}, {"test_it.py::import": Result(ABSENT)}, [], "Nothing differs.", 2),
        (trim(HOLDS), {TRIM: Result(BROKEN, "worker crashed")}, [BROKE], "BROKEN: C2 trim.", 1),
    ],
)
def test_a_judgement(base: Results, tree: Results, kinds: list[str], message: str, status: int) -> None:
    judged = judgement(base, tree)
    assert [group.kind for group in judged.groups] == kinds
    assert message in judged.screen()
    assert message.partition(" (on")[0] in judged.markdown()
    assert judged.verdict()[0] == status


def test_the_screen_and_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen has one example, and its last lines, of which the last one is wrong."""
    monkeypatch.chdir(ROOT / "docs")
    trims, lines = [TRIM.replace("]", f"{n}]") for n in range(30)], "".join(f"line {n}\n" for n in range(99))
    tree = {test: Result(BROKEN, "lost", lines, "Wrong: so.", asked=f"C2 {n % 9}") for n, test in enumerate(trims)}
    judged = judgement(dict.fromkeys(trims, Result(HOLDS)), tree, Change("generate.py", 421, 380, ["mtp_step"]))
    first, *rest, last = judged.screen().splitlines()
    assert first == "380 of 421 changed lines of generate.py ran; never called: `mtp_step` of generate.py."
    assert last == f"    python -m pytest '../{trims[0]}'"
    assert len(rest) < 40
    assert "    line 98" in rest
    assert "    line 0" not in rest
    assert "The release fails this test too. Wrong: so." in rest
    assert "The release fails" not in judgement({}, tree).screen()
    assert all(f"pytest '../{test}'" in judged.markdown() for test in trims)


@pytest.mark.parametrize(("ran", "never", "status"), [(0, [], 2), (3, ["f"], 2), (3, [], 0)])
def test_what_never_ran_is_not_judged(ran: int, never: list[str], status: int) -> None:
    judged = judgement(trim(HOLDS), trim(HOLDS), Change("server.py", 7, ran, never))
    assert judged.verdict()[0] == status
    assert f"{ran} of 7 changed lines of server.py ran" in judged.screen()
    assert ("Nothing differs." in judged.screen()) == (ran > 0)


def test_each_file_that_is_asked_is_of_a_part() -> None:
    rooms = (path for path in (ROOT / "conformance").iterdir() if path.name not in ("repository", "judging"))
    tests = {path for room in rooms for path in room.rglob("test_*.py") if "mark.asked(" in path.read_text("utf-8")}
    left_out = tests - {ROOT / file for file in asked_files(list(PARTS))}
    assert len(tests) >= 6
    assert not left_out, f"the judge asks no part for {left_out}: add their folder to PARTS"


def test_what_of_a_tree_ran(tmp_path: Path) -> None:
    """Lines without code do not count, and of a statement its first."""
    texts = {
        "old/a.py": "def f():\n    return (\n        1)\n",
        "new/a.py": "def f():\n    return (\n        2)\n\n\ndef g():\n    pass\n",
        "new/b.py": "# Nothing.\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    never = {"executed_lines": [], "missing_lines": [7]}
    old, new, coverage = tmp_path / "old", tmp_path / "new", {"executed_lines": [1, 2, 6], "missing_lines": [7]}
    assert change(old, new, "a.py", coverage | {"functions": {"g": never}}) == Change("a.py", 3, 2, ["g"])
    assert change(old, new, "b.py", {"executed_lines": [], "missing_lines": [], "functions": {}}).lines == 0
    assert changed_files(new, new) == []
    assert changed_files(new, old) == ["a.py", "b.py"], "a file that went is a change"
    assert sentence([]) == "No line of code is new or changed."


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


def test_what_hangs_or_dies_is_found_and_the_rest_is_asked(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(ASKED)
    asked = [str(tmp_path / "test_it.py"), f"--confcutdir={ROOT}", "-p", "conformance.conftest"]
    found = Asked(Path(sys.executable), tmp_path, tmp_path, limit=1).ask(asked)
    # Of one that dies pytest does not know more.
    assert [one.outcome for one in found.values()] == [BROKEN, NOT_FINISHED, NOT_FINISHED, HOLDS]
    assert sum(one.message.endswith("it took more than 1 s and was stopped") for one in found.values()) == 2
    with pytest.raises(NotAsked, match="ends with 4"):
        Asked(Path(sys.executable), tmp_path, tmp_path, ["no_such_adapter"]).ask(["conformance/caches"])


def test_a_base_is_asked_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, file, seen = Asked(Path(sys.executable), tmp_path, tmp_path), tmp_path / "a.py", list[str]()

    def ask(self: Asked, files: list[str]) -> None:
        seen.append(file.read_text() + "".join(files))
        self.report.touch()

    monkeypatch.setattr(Asked, "ask", ask)
    for text, files in (("1", "a"), ("1", "a"), ("1", "ab"), ("2", "ab"), ("1", "a")):
        file.write_text(text)
        tree.ask_once(list(files), tmp_path / "kept")
    assert seen == ["1a", "1ab", "2ab"]


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


# Faults of the release that no test of one tree can see: other bits, and another fault where one is known.
BITS = "conformance/contracts/test_decoding.py::test_plain[llama]"
KEEP = "conformance/caches/test_programs.py::test_blocks[RotatingKVCache with keep]"
ORDER = "RotatingKVCache._temporal_order"
COMPARED = [
    Fault("bits", "C4", BITS, "generate.py", "= prompt[:n_to_process]", "= prompt[1:n_to_process]"),
    Fault("cases", "C4", KEEP, "models/cache.py", "v[..., : self.keep, :],", "v[..., :0, :],", ORDER),
]
# What the adapter of the page needs of a tree.
STEP = """

def lookahead_step(prompt, model, *, n, **options):
    return prompt_lookup_generate_step(prompt, model, num_draft_tokens=n, disable_adaptive_gate=True, **options)
"""
(HISTORY,) = [fault for fault in read(FOLDER / "judge.toml") if fault.name == "history fed twice"]


def results(tree: Path, folder: Path, test: str, *adapters: str) -> Results:
    asked = Asked(Path(sys.executable), folder, tree / "mlx_lm", adapters, {"PYTHONPATH": str(tree)})
    return asked.ask([*shlex.split(test), "--numprocesses=0"])


@pytest.mark.planted
@pytest.mark.parametrize("fault", COMPARED, ids=lambda fault: fault.name)
def test_a_fault_that_only_the_base_shows_is_found(fault: Fault, tmp_path: Path) -> None:
    base = unpack(commits()[0], tmp_path / "base")
    tree = plant(base / "mlx_lm", tmp_path / "tree", fault)
    was, now = (results(where, tmp_path, shlex.quote(fault.red)) for where in (base, tree))
    assert [group.kind for group in differences(was, now)] == [BROKE]
    assert differences(was, was) == []


@pytest.mark.planted
@pytest.mark.parametrize(("fault", "outcome"), [(None, HOLDS), (HISTORY, BROKEN)], ids=[HOLDS, BROKEN])
def test_a_fault_is_found_through_the_adapter_of_the_page(fault: Fault | None, outcome: str, tmp_path: Path) -> None:
    adapter, source = tmp_path / "mine.py", unpack(commits()[-1], tmp_path / "source")
    adapter.write_text(example := block("docs/releases.md", "lookahead_step(mx.array(prompt)"))
    assert all(name in str(adapters.__doc__) for name in MAY_HAVE)
    assert all(name in example for name in MAY_HAVE - {"fits", "stream"})
    with pytest.raises(Unusable, match="cannot import name 'lookahead_step'"):
        load(str(adapter))
    with (source / "mlx_lm" / "generate.py").open("a") as file:
        file.write(STEP)
    tree = plant(source / "mlx_lm", tmp_path / "tree", fault)
    # Words of -k have no spaces.
    found = results(tree, tmp_path, HISTORY.red.replace("scripted", "lookup"), str(adapter)).values()
    assert outcome in {one.outcome for one in found}
    assert fault or {one.outcome for one in found} == {HOLDS}
