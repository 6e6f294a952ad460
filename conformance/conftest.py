"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load

from conformance import FIXTURE
from conformance.adapters import Adapters
from conformance.series.patches import commits, unpack
from conformance.subjects.decoded import Family
from conformance.subjects.tiny import save

pytest_plugins = ["conformance.plugin"]


@pytest.fixture(scope="session")
def adapter(pytestconfig: pytest.Config) -> Adapters:
    """What the features of the installed mlx-lm are called through."""
    plugin: Any = pytestconfig.pluginmanager.get_plugin("parameters")
    adapters: Adapters = plugin.adapters
    return adapters


@pytest.fixture
def about(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Note what a test is about and what that rests on: a test follows from a failed one of what it rests on."""

    def note(subject: str | Family, *uses: str | Iterable[str]) -> None:
        if isinstance(subject, Family):
            uses = (*uses, *subject.rests_on())
        record_property("about", getattr(subject, "name", subject))
        record_property("uses", ", ".join(map(str, uses)))

    return note


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def fixture() -> tuple[Any, Any]:
    """The model of this repository and its tokenizer."""
    model, tokenizer = load(str(FIXTURE))
    return model, tokenizer


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The paths of that model, of one with a sliding window, and of a hybrid one."""
    folder = tmp_path_factory.mktemp("models")
    return {"fixture": str(FIXTURE), **{name: str(save(name, folder)) for name in ("gemma3_text", "qwen3_next")}}


@pytest.fixture
def known_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learn no costs: how long passes take here would decide what is drafted."""
    from mlx_lm.draft import LearnedCosts

    monkeypatch.setattr(LearnedCosts, "learn", lambda *_: None)


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """Turn off compiled functions: the first use of each starts a C++ compiler for two seconds."""
    mx.disable_compile()
    yield
    mx.enable_compile()
