"""Every architecture without drafts, in any tree. The logits are noted, for a comparison bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import mlx.core as mx
import pytest

from conformance.adapters import Adapters
from conformance.drafters import VOCAB
from conformance.oracle.findings import broken, not_offered
from conformance.plugin import note
from conformance.subjects.architectures import CONFIGS, PROMPT, STEPS, UNRUNNABLE, logits, runnable

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
