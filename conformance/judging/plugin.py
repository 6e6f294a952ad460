"""pytest's option --adapter, and the parameters of the tests that a judgement runs.

A test with the argument ``family`` is run for each kind of model, one with ``drafter`` for each drafter of the
adapters, and one with ``command`` for each command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from conformance.adapters import Adapters, Unusable, find, load
from conformance.subjects.decoded import Family, families

COMMANDS = ("generate", "chat", "server")


class Plugin:
    def __init__(self, names: list[str] | None) -> None:
        try:
            self.adapters = Adapters([load(name) for name in names]) if names else find()
        except Unusable as error:
            raise pytest.UsageError(str(error)) from error
        self.families = families(self.adapters.models)

    def pytest_report_header(self) -> str:
        return f"through the adapters {self.adapters.name}"

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "family" in metafunc.fixturenames and "adapter" in metafunc.fixturenames:
            # A file names the families that its tests cannot ask.
            without = getattr(metafunc.module, "WITHOUT", ())
            chosen = [family for family in self.families if family.name not in without]
            metafunc.parametrize("family", chosen, ids=[family.name for family in chosen])
        if "drafter" in metafunc.fixturenames and "adapter" in metafunc.fixturenames:
            metafunc.parametrize("drafter", self.adapters.drafters)
        if "command" in metafunc.fixturenames and "adapter" in metafunc.fixturenames:
            metafunc.parametrize("command", dict.fromkeys([*COMMANDS, *self.adapters.commands]))

    @pytest.fixture
    def about(self, record_property: Callable[[str, object], None]) -> Callable[..., None]:
        """Note what a test is about and what that rests on: a test follows from a failed one of what it rests on."""

        def note(subject: str | Family, *uses: str | Iterable[str]) -> None:
            if isinstance(subject, Family):
                uses = (*uses, *subject.rests_on())
            record_property("about", getattr(subject, "name", subject))
            record_property("uses", ", ".join(map(str, uses)))

        return note


def note(request: Any, name: str, value: object) -> None:
    """A number of a run, to compare with that of the base."""
    request.node.user_properties.append((name, str(value)))
