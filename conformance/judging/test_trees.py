"""A judgement finds what is planted in a tree: what only its base shows, and what only an adapter can ask."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from conformance import adapters
from conformance.adapters import MAY_HAVE, Unusable, load
from conformance.faults import FOLDER, Fault, plant, read
from conformance.judging.difference import BROKE, differences
from conformance.judging.results import BROKEN, HOLDS, Results
from conformance.judging.run import Asked
from conformance.pages import block
from conformance.series.patches import commits, unpack

# Faults of the release that no test of one tree can see: other bits, and another fault where one is known.
PLAIN = "conformance/contracts/test_decoding.py::test_plain[llama]"
KEEP = "conformance/caches/test_programs.py::test_blocks[RotatingKVCache with keep]"
ORDER = "RotatingKVCache._temporal_order"
COMPARED = [
    Fault("bits", "C4", PLAIN, "generate.py", "= prompt[:n_to_process]", "= prompt[1:n_to_process]"),
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
    adapter.write_text(block("docs/releases.md", "lookahead_step(mx.array(prompt)"))
    with pytest.raises(Unusable, match="cannot import name 'lookahead_step'"):
        load(str(adapter))
    with (source / "mlx_lm" / "generate.py").open("a") as file:
        file.write(STEP)
    tree = plant(source / "mlx_lm", tmp_path / "tree", fault)
    # Words of -k have no spaces.
    found = results(tree, tmp_path, HISTORY.red.replace("scripted", "lookup"), str(adapter)).values()
    assert outcome in {one.outcome for one in found}
    assert fault or {one.outcome for one in found} == {HOLDS}


def test_the_page_names_all_that_an_adapter_may_have() -> None:
    example = block("docs/releases.md", "lookahead_step(mx.array(prompt)")
    assert all(name in str(adapters.__doc__) for name in MAY_HAVE)
    assert all(name in example for name in MAY_HAVE - {"fits", "stream"})
