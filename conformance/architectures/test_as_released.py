"""Without drafts every architecture computes what it does in the release, bit for bit, and calls what it calls there.

The series touches model files. Parity with plain decoding of the same tree cannot show a fault that both have.
"""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

import mlx.core as mx
import pytest
from mlx_lm.models import cache

from conformance.architectures import asked
from conformance.oracle.findings import broken
from conformance.subjects.architectures import build, logits, make_cache, recurrent

pytestmark = [pytest.mark.patched_source, pytest.mark.usefixtures("uncompiled")]


@pytest.mark.parametrize("name", asked())
def test_the_logits_are_those_of_the_release(name: str, released: str) -> None:
    ours, theirs = (logits(name, package) for package in ("mlx_lm", released))
    if not mx.array_equal(ours, theirs).item():
        broken(f"{name}: the logits are off by {mx.abs(ours - theirs).max().item():.2g} from those of the release")


# The operations of recurrent layers that other packages replace.
REPLACED = {"gated_delta_update", "ssm_update", "recurrent_gla"}


@pytest.mark.parametrize("name", recurrent())
def test_what_replaces_an_operation_is_called_as_in_the_release(
    name: str, released: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the release stand in the place of ours, and what they take is all that they are given."""
    ours, theirs = (import_module(f"{package}.models.{name}") for package in ("mlx_lm", released))
    for operation in REPLACED & vars(ours).keys():
        monkeypatch.setattr(ours, operation, getattr(theirs, operation))
    for kind in vars(ours).values():
        if hasattr(kind, "_process_sequence"):
            monkeypatch.setattr(kind, "_process_sequence", getattr(theirs, kind.__name__)._process_sequence)
    model, tokens = build(name), mx.array([[(5 * i + 2) % 23 for i in range(12)]])
    caches, others = make_cache(model), make_cache(model)
    for layers in (caches, others):
        model(tokens[:, :6], cache=layers)
    snapshot = cache.snapshot_prompt_cache(caches)
    model(tokens[:, 6:11], cache=caches)
    model(tokens[:, 6:9], cache=others)
    if cache.trim_prompt_cache(caches, 2) == 0:
        # An operation of another package does not say what it takes to run again.
        cache.restore_prompt_cache(caches, snapshot)
        model(tokens[:, 6:9], cache=caches)
    a, b = (model(tokens[:, 11:], cache=layers) for layers in (caches, others))
    if not (off := mx.abs(a - b).max().item()) <= 1e-4:
        broken(f"{name}: after two tokens are dropped, the logits are off by {off:.2g}")


Signatures = dict[str, inspect.Signature]


def functions(package: str) -> Signatures:
    """The functions and methods of the models, by module and name."""
    found = {}
    for info in pkgutil.iter_modules(import_module(f"{package}.models").__path__, f"{package}.models."):
        try:
            module = import_module(info.name)
        except (ImportError, SystemExit):
            # It needs a package that is not here.
            continue
        own = [part for part in vars(module).values() if getattr(part, "__module__", None) == info.name]
        for holder in [module, *filter(inspect.isclass, own)]:
            for function in vars(holder).values():
                if inspect.isfunction(function) and function.__module__ == info.name:
                    path = f"{info.name.removeprefix(f'{package}.models.')}.{function.__qualname__}"
                    found[path] = inspect.signature(function)
    return found


# They are given positions instead of lengths, as rows of a batch have different ones.
CHANGED = {"phi3small.Attention._block_sparse_mask", "phi3small.Attention._block_sparse_attention"}


def takes_less(ours: inspect.Signature | None, theirs: inspect.Signature) -> bool:
    """Whether a call that the release understands is not understood, or in another way."""
    if ours is None:
        return False
    released = [(p.name, p.kind) for p in theirs.parameters.values()]
    now = list(ours.parameters.values())
    more = now[len(released) :]
    return [(p.name, p.kind) for p in now[: len(released)]] != released or any(p.default is p.empty for p in more)


def test_functions_of_models_take_what_they_take_in_the_release(released: str) -> None:
    ours = functions("mlx_lm")
    changed = {path for path, theirs in functions(released).items() if takes_less(ours.get(path), theirs)}
    assert changed == CHANGED, f"{', '.join(sorted(changed ^ CHANGED))} do not take what they take in the release"
