"""Random programs on prompt caches. hypothesis looks for one that fails, and then for a shorter one."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any, ClassVar
from unittest.mock import patch

import mlx.core as mx
from hypothesis import HealthCheck, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from conformance.adapters import Adapters
from conformance.caches.kinds import KINDS
from conformance.caches.program import Wrong
from conformance.caches.steps import State, Steps, of_series
from conformance.oracle.findings import broken, not_offered, not_shown
from conformance.oracle.profiles import FULL

SEARCH = settings(
    max_examples=2000 if FULL else 80,
    stateful_step_count=25 if FULL else 10,
    derandomize=not FULL,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    verbosity=Verbosity.quiet,
    suppress_health_check=list(HealthCheck),
)
# What can be done with the rows of a batch is more.
ROWS = settings(SEARCH, max_examples=2000 if FULL else 160, stateful_step_count=25)
# For so many seconds hypothesis looks for a shorter program. By default it does so for five minutes.
SHORTEN = float(os.environ.get("CONFORMANCE_SHORTEN", 40))
# The most tokens that are fed at once.
LONGEST = 9
LENGTHS = st.integers(1, LONGEST)
HISTORY = st.lists(LENGTHS, max_size=2)
# What the operations of a program need of an adapter.
NEEDS = {"trim": ("can_trim", "trim"), "snapshot": ("snapshot", "restore"), "rows": ()}


def allowed(names: str, condition: Callable[[CacheMachine], bool] = lambda _: True) -> Callable[[Any], Any]:
    """A rule is for tests of these operations, where a condition holds."""
    return precondition(lambda self: bool(self.operations.intersection(names.split())) and condition(self))


def ready(self: CacheMachine) -> bool:
    return not self.state.pending


def begun(self: CacheMachine) -> bool:
    """Whether each row has a token, so that a batch may change."""
    return ready(self) and min(self.state.sizes) > 0


class CacheMachine(RuleBasedStateMachine):
    kind_name: ClassVar[str]
    adapter: ClassVar[Adapters]
    operations: ClassVar[set[str]]
    done: ClassVar[set[str]]

    @initialize(
        size=st.integers(4, 6),
        padding=st.sampled_from([[0, 2], [0], [1, 0, 3]]),
        histories=st.lists(HISTORY, max_size=2),
    )
    def start(self, size: int, padding: list[int], histories: list[list[int]]) -> None:
        self.steps = Steps(self.kind_name, self.adapter, size, self.done)
        self.do, self.exact = self.steps.do, self.steps.exact
        self.other: State | None = None
        batched = bool(self.steps.kind.single)
        self.steps.begin(padding if batched else [0], histories if batched and "rows" in self.operations else [])

    @property
    def state(self) -> State:
        return self.steps.state

    @rule(n=LENGTHS)
    def feed_block(self, n: int) -> None:
        if self.state.pending:
            # Not one token, and not past the longest prompt.
            left = max(self.state.references[0].lengths or [0])
            n = left if max(n, 2) > left - 2 else max(n, 2)
        if n > 0:
            self.steps.feed(self.state, n)

    @precondition(ready)
    @rule(n=st.integers(2, 7))
    def feed_singly(self, n: int) -> None:
        """They rotate a ring, and a block may follow at any point."""
        for _ in range(n):
            self.steps.feed(self.state, 1)
            self.steps.look(self.state)

    # What a release says of far trims is asked once, by the test of trims.
    @allowed("trim", lambda self: ready(self) and (self.exact or "snapshot" not in self.operations))
    @rule(n=st.integers(0, LONGEST + 2))
    def trim(self, n: int) -> None:
        held = min(self.steps.held)
        possible = self.steps.can_trim(n, must=n <= self.state.droppable or (self.steps.whole and n <= held))
        if self.exact and not possible:
            self.steps.too_many(n)
        if possible and (self.exact or 0 < n <= held):
            self.steps.drop(n)

    @allowed("trim", ready)
    @rule(kept=st.integers(1, 5), n=st.integers(1, 4))
    def reject(self, kept: int, n: int) -> None:
        """A draft is fed and its end dropped, as a decode does."""
        if "snapshot" in self.adapter:
            self.do(f"snapshot({self.state.name})")
        self.steps.feed(self.state, kept + n)
        self.trim(n)

    @allowed("trim", lambda self: self.exact and ready(self))
    @rule(n=st.sampled_from([-1, 10**6]))
    def trim_nonsense(self, n: int) -> None:
        self.steps.too_many(n)

    @allowed("snapshot rows", lambda self: "snapshot" in self.adapter)
    @rule()
    def snapshot(self) -> None:
        self.steps.take()

    @allowed("snapshot rows", lambda self: bool(self.state.snapshots))
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        self.steps.go_back(data.draw(st.sampled_from(self.state.snapshots)))

    @allowed("snapshot", ready)
    @rule(n=st.integers(1, 4))
    def go_back_twice(self, n: int) -> None:
        """Other tokens take the place of those that a snapshot holds."""
        first = self.steps.take()
        self.steps.feed(self.state, n)
        second = self.steps.take()
        self.steps.go_back(first)
        self.steps.feed(self.state, n)
        self.steps.go_back(second)

    @allowed("snapshot rows")
    @rule()
    def read(self) -> None:
        """Reading the state changes nothing."""
        before, line = self.steps.look(self.state), len(self.steps.program.lines)
        mx.eval(self.do(f"[c.state for c in {self.state.name}]"))
        self.steps.same(before, self.state, "after reading the state", line)

    @allowed("snapshot")
    @rule()
    def fork(self) -> None:
        """Copy the caches, as the server does, and go on with these or with the copy."""
        self.other = State(self.steps.new_name("copy"), copy.deepcopy(self.state.references))
        self.do(f"copy.deepcopy({self.state.name})", self.other.name)

    @allowed("snapshot", lambda self: self.other is not None)
    @rule()
    def swap(self) -> None:
        assert self.other is not None
        self.steps.state, self.other = self.other, self.state
        self.steps.look(self.state)

    @allowed("snapshot", lambda self: self.kind_name == "quantized on the way")
    @rule(i=st.integers(0, 1), n=st.integers(0, 4))
    def quantize(self, i: int, n: int) -> None:
        """A snapshot puts back an entry that was replaced since."""
        if hasattr(self.steps.caches(self.state)[i], "to_quantized"):
            taken, entry = self.steps.take(), f"{self.state.name}[{i}]"
            self.do(f"{entry}.to_quantized(group_size=32, bits=8)", entry)
            self.steps.look(self.state)
            if n > 0:
                self.steps.feed(self.state, n)
                self.steps.go_back(taken)

    @allowed("rows", lambda self: self.exact and ready(self))
    @rule(n=st.integers(2, LONGEST), data=st.data())
    def reject_by_row(self, n: int, data: st.DataObject) -> None:
        """Right after a block, each row drops its own number of tokens."""
        self.do(f"snapshot({self.state.name})")
        self.steps.feed(self.state, n)
        size = len(self.state.sizes)
        each = data.draw(st.lists(st.integers(0, n), min_size=size, max_size=size))
        if self.steps.can_trim(each, must=max(each) <= self.state.droppable):
            self.steps.drop(each)
        else:
            self.steps.refused(each)

    @allowed("rows", lambda self: self.exact and ready(self))
    @rule(n=st.integers(1, 2), more=st.sampled_from([-1, 1]))
    def another_number_of_rows(self, n: int, more: int) -> None:
        if (rows := len(self.state.sizes) + more) > 0:
            self.steps.refused([n] * rows)

    @allowed("rows", begun)
    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        size = len(self.state.sizes)
        lengths = data.draw(st.lists(LENGTHS, min_size=size, max_size=size))
        padding = [max(lengths) - n for n in lengths]
        if max(padding) > 0:
            self.do(f"[c.prepare(lengths={lengths}, right_padding={padding}) for c in {self.state.name}]")
            for reference in self.state.references:
                reference.prepare(lengths)
            self.steps.changed()

    @allowed("rows", lambda self: self.state.pending)
    @rule()
    def finalize(self) -> None:
        while max(self.state.references[0].lengths or [0]) > 0:
            self.feed_block(LONGEST)
        self.do(f"[c.finalize() for c in {self.state.name}]")
        for reference in self.state.references:
            reference.finalize()
        self.steps.changed()

    @allowed("rows", begun)
    @rule(data=st.data(), back=st.booleans())
    def filter(self, data: st.DataObject, back: bool) -> None:
        """Rows leave. A snapshot from before brings them back, or is refused."""
        keep = sorted(data.draw(st.sets(st.integers(0, len(self.state.sizes) - 1), min_size=1)))
        taken = self.steps.take() if back and "snapshot" in self.adapter else None
        self.do(f"[c.filter(mx.array({keep})) for c in {self.state.name}]")
        for reference in self.state.references:
            reference.filter(keep)
        self.steps.changed()
        if taken is not None:
            self.steps.go_back(taken)

    @allowed("rows", lambda self: begun(self) and len(self.state.sizes) < 4)
    @rule(histories=st.lists(HISTORY, min_size=1, max_size=2), later=HISTORY)
    def extend(self, histories: list[list[int]], later: list[int]) -> None:
        rows = [self.steps.single(lengths) for lengths in histories]
        other = self.steps.joined(self.steps.new_name("batch"), rows)
        for n in later:
            self.steps.feed(other, n)
        self.do(f"[c.extend(o) for c, o in zip({self.state.name}, {other.name})]")
        for reference, joined in zip(self.state.references, other.references, strict=True):
            reference.extend(joined)
        self.steps.changed()

    @allowed("rows", begun)
    @rule()
    def split(self) -> None:
        """Extract each row, then merge them into new caches."""
        rows = []
        for i in range(len(self.state.sizes)):
            row = State(self.steps.new_name("row"), copy.deepcopy(self.state.references))
            self.do(f"[c.extract({i}) for c in {self.state.name}]", row.name)
            for reference in row.references:
                reference.filter([i])
            self.steps.look(row)
            rows.append(row)
        self.state.references = self.steps.joined(self.state.name, rows).references
        self.steps.changed()


def run(kind: str, adapter: Adapters, *operations: str) -> None:
    """Run programs of these operations, and say what is wrong with the shortest one that fails."""
    lacking = {one: [name for name in NEEDS[one] if name not in adapter] for one in operations}
    if operations and (names := lacking[operations[-1]]):
        not_offered(f"the adapter has no {' and no '.join(names)}")
    KINDS[kind].names  # noqa: B018 - the tree has its classes
    done, found = set[str](), None
    possible = {one for one, names in lacking.items() if not names}
    members = {"kind_name": kind, "adapter": adapter, "operations": possible, "done": done}
    try:
        with patch("hypothesis.internal.conjecture.engine.MAX_SHRINKING_SECONDS", SHORTEN, create=True):
            run_state_machine_as_test(
                type("Machine", (CacheMachine,), members), settings=ROWS if "rows" in possible else SEARCH
            )
    except Wrong as wrong:
        found = wrong
    if found is not None:
        broken(found.sentence, found.program.text(found.sentence))
    if operations and operations[-1] not in done:
        if of_series(adapter):
            broken(f"not shown: it refuses every {operations[-1]}")
        not_shown(f"it refuses every {operations[-1]}")
