"""What a head gains that is as often right as others report, and what one costs that never is."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from mlx_lm.draft import EditStrategy, Proposal

from conformance.lab.simulate.run import GPU, M4, run
from conformance.lab.streams import load
from conformance.lab.trained.__main__ import fresh, reported


@pytest.mark.contract("C7")
def test_a_head_gains_where_nothing_is_copied() -> None:
    texts = fresh(3)
    assert run(EditStrategy, texts, M4).mean("speed") == pytest.approx(1, abs=0.01)
    assert reported(texts, M4, 0.06).mean("speed") > 1.75
    assert reported(texts, M4, 0.06, (0.5,)).mean("speed") > 1.2
    assert reported(texts, M4, 0.06, (0.0,)).worst > 0.98


@pytest.mark.contract("C7")
def test_the_lookup_goes_on_behind_a_head() -> None:
    """What it drafts there gains, and edits that copy lose nothing by a head."""
    found = load("answers")[::6]
    chained = reported(found, GPU, 0.06).mean("speed")
    with patch.object(EditStrategy, "propose_behind", lambda *_: Proposal()):
        assert chained > 1.03 * reported(found, GPU, 0.06).mean("speed")
    edits = load("edits")[::10]
    assert reported(edits, M4, 0.06).mean("speed") > 0.995 * run(EditStrategy, edits, M4).mean("speed")
