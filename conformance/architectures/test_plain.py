"""Every architecture without drafts, in any tree. The logits are noted, for a comparison bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import mlx.core as mx
import mlx_lm
import pytest

from conformance.adapters import Adapters
from conformance.drafters import VOCAB
from conformance.oracle.findings import broken, not_offered
from conformance.plugin import note
from conformance.subjects.architectures import CONFIGS, PROMPT, STEPS, UNRUNNABLE, logits, model_files, runnable

pytestmark = pytest.mark.usefixtures("uncompiled")


@pytest.mark.asked("plain decoding")
@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - UNRUNNABLE.keys()))
def test_plain(name: str, adapter: Adapters, about: Callable[..., None], request: pytest.FixtureRequest) -> None:
    about(name)
    if name not in runnable():
        not_offered(f"the tree has no mlx_lm.models.{name}")
    rows = logits(name)
    if rows.shape != (PROMPT + STEPS, VOCAB):
        broken(f"the logits are of shape {rows.shape}")
    tokens = mx.argmax(rows, axis=-1).tolist()
    digests = (hashlib.sha256(bytes(memoryview(row))).hexdigest()[:8] for row in rows)
    note(request, "steps", " ".join(f"{token}:{digest}" for token, digest in zip(tokens, digests, strict=True)))
    if not mx.isfinite(rows).all().item():
        broken("a logit is not finite")


# Model files that some supported releases have and others do not.
SINCE: dict[str, tuple[str, ...]] = {
    "muse_spark": ("0.32.2",),
    "muse_spark_open": ("0.32.1",),
    "prism_hadamard_qwen35": ("0.32.1", "0.32.2"),
}


def test_the_suite_knows_every_model() -> None:
    known, release = CONFIGS.keys() | UNRUNNABLE.keys(), mlx_lm.__version__.split("+")[0]
    unknown = sorted(set(model_files()) - known)
    assert not unknown, f"{', '.join(unknown)}: add a configuration to conformance/subjects/architectures.json"
    gone = {name for name, releases in SINCE.items() if release not in releases}
    stale = sorted(known - set(model_files()) - gone)
    assert not stale, f"mlx-lm {release} has no model file for the entries {', '.join(stale)}."
