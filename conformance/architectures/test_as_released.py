"""Without drafts every architecture computes what it does in the release, bit for bit.

The series touches model files. Parity with plain decoding of the same tree cannot show a fault that both have.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import qwen3_next
from mlx_lm.models.cache import ArraysCache, restore_prompt_cache, snapshot_prompt_cache, trim_prompt_cache
from mlx_lm.models.recurrent_gemma import RGLRU

from conformance.series.patches import commits, unpack
from conformance.subjects.architectures import build, logits, make_cache, outline, runnable
from conformance.subjects.families import mutant
from conformance.testing.faults.planted import planted

pytestmark = [pytest.mark.patched_source, pytest.mark.usefixtures("uncompiled")]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a package beside mlx_lm: the release without the series."""
    folder, name = tmp_path_factory.mktemp("released"), "mlx_lm_as_released"
    package = (unpack(commits()[0], folder) / "mlx_lm").rename(folder / name)
    for path in package.rglob("*.py"):
        # A few import with the name of the package.
        path.write_text(path.read_text("utf-8").replace("from mlx_lm.", f"from {name}."), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield name


@pytest.mark.parametrize("name", runnable())
def test_the_logits_are_those_of_the_release(name: str, released: str) -> None:
    assert mx.array_equal(logits(name), logits(name, released)).item()


class StatesOfAnother:
    """A recurrent cache of another package: what the layers of the release ask for, and no more."""

    lengths = left_padding = None

    def __init__(self, size: int) -> None:
        self.states: list[Any] = [None] * size

    def __getitem__(self, i: int) -> Any:
        return self.states[i]

    def __setitem__(self, i: int, state: mx.array) -> None:
        self.states[i] = state

    def make_mask(self, n: int) -> None:
        return None

    def advance(self, n: int) -> None:
        pass


def is_recurrent(cache: Any) -> bool:
    return type(cache).__name__ == "ArraysCache" or any(map(is_recurrent, getattr(cache, "caches", ())))


def of_another(caches: list[Any]) -> None:
    for i, cache in enumerate(caches):
        if hasattr(cache, "caches"):
            cache.caches = list(cache.caches)
            of_another(cache.caches)
        elif is_recurrent(cache):
            caches[i] = StatesOfAnother(len(cache.cache))


RECURRENT = [name for name in runnable() if any(map(is_recurrent, make_cache(outline(name))))]


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_cache_of_another_package(name: str, released: str) -> None:
    assert mx.array_equal(logits(name, change=of_another), logits(name, released, of_another)).item()


@pytest.mark.planted
def test_a_layer_that_asks_more_of_a_cache_is_found(released: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = qwen3_next.Qwen3NextGatedDeltaNet
    monkeypatch.setattr(layer, "__call__", mutant(layer.__call__, "cache.lengths)", "cache.ends)"))
    with pytest.raises(AttributeError, match="ends"):
        test_a_recurrent_cache_of_another_package("qwen3_next", released)


# The operations of recurrent layers that other packages replace.
REPLACED = {"gated_delta_update", "ssm_update", "recurrent_gla"}


@pytest.mark.parametrize("name", RECURRENT)
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
    for cache in (caches, others):
        model(tokens[:, :6], cache=cache)
    snapshot = snapshot_prompt_cache(caches)
    model(tokens[:, 6:11], cache=caches)
    model(tokens[:, 6:9], cache=others)
    if trim_prompt_cache(caches, 2) == 0:
        # An operation of another package does not say what it takes to run again.
        restore_prompt_cache(caches, snapshot)
        model(tokens[:, 6:9], cache=caches)
    last = [model(tokens[:, 11:], cache=cache) for cache in (caches, others)]
    assert mx.allclose(*last, atol=1e-4, rtol=0).item()


@pytest.mark.planted
def test_one_more_argument_is_found(released: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, call = qwen3_next.Qwen3NextGatedDeltaNet, ("use_kernel=", "entry=cache, use_kernel=")
    monkeypatch.setattr(layer, "__call__", mutant(layer.__call__, *call))
    with pytest.raises(TypeError, match="entry"):
        test_what_replaces_an_operation_is_called_as_in_the_release("qwen3_next", released, monkeypatch)


def functions(package: str) -> dict[str, inspect.Signature]:
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
                    path = f"{info.name.removeprefix(package)}.{function.__qualname__}"
                    found[path] = inspect.signature(function)
    return found


# They are given positions instead of lengths, as rows of a batch have different ones.
CHANGED = {
    "phi3small.Attention._block_sparse_mask",
    "phi3small.Attention._block_sparse_attention",
}


def takes_less(ours: inspect.Signature | None, theirs: inspect.Signature) -> bool:
    """Whether a call that the release understands is not understood, or in another way."""
    if ours is None:
        return False
    released = [(p.name, p.kind) for p in theirs.parameters.values()]
    now = list(ours.parameters.values())
    more = now[len(released) :]
    return [(p.name, p.kind) for p in now[: len(released)]] != released or any(p.default is p.empty for p in more)


def test_functions_of_models_take_what_they_take_in_the_release(released: str) -> None:
    ours, theirs = functions("mlx_lm"), functions(released)
    changed = {path.removeprefix(".models.") for path, of in theirs.items() if takes_less(ours.get(path), of)}
    assert changed == CHANGED


@pytest.mark.planted
def test_a_changed_signature_is_found(released: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def advance(self: Any, i: int, x: mx.array) -> None:
        pass

    advance.__module__, advance.__qualname__ = ArraysCache.__module__, "ArraysCache.advance"
    monkeypatch.setattr(ArraysCache, "advance", advance)
    with pytest.raises(AssertionError, match=r"cache\.ArraysCache\.advance"):
        test_functions_of_models_take_what_they_take_in_the_release(released)


rglru = RGLRU.__call__


def a_little_more(self: RGLRU, *args: Any, **kwargs: Any) -> Any:
    made, state = rglru(self, *args, **kwargs)
    return 1.0001 * made, state


@pytest.mark.planted
@planted(("recurrent_gemma", RGLRU, "__call__", a_little_more))
def test_a_planted_fault_is_found(where: str, released: str) -> None:
    assert not mx.array_equal(logits(where), logits(where, released)).item()
