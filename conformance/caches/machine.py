"""Random programs on prompt caches. hypothesis looks for one that fails, and then for a shorter one."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar
from unittest.mock import patch

import mlx.core as mx
import pytest
from hypothesis import Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from conformance.adapters import Adapters
from conformance.caches.kinds import KINDS, NAMES
from conformance.caches.program import Program, Wrong, of_series
from conformance.oracle.findings import broken, not_offered, not_shown
from conformance.oracle.profiles import FULL, PROFILE

FULLY = settings(PROFILE, phases=list(Phase), verbosity=Verbosity.quiet)
SEARCH = FULLY if FULL else settings(FULLY, max_examples=80, stateful_step_count=10)
# What can be done with the rows of a batch is more.
ROWS = FULLY if FULL else settings(FULLY, max_examples=60, stateful_step_count=20)
# For so many seconds hypothesis looks for a shorter program. By default it does so for five minutes.
SHORTEN = float(os.environ.get("CONFORMANCE_SHORTEN", 40))
# The programs that the judge compares with those of the base where a test fails on both.
FIXED = 30
PADDING = [[0, 2], [0], [1, 0, 3]]
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
    """Whether no prompts with padding on the right are being fed."""
    return self.state.right.lengths is None


def begun(self: CacheMachine) -> bool:
    """Whether each row has a token, so that a batch may change."""
    return ready(self) and min(self.state.right.sizes) > 0


class CacheMachine(Program, RuleBasedStateMachine):
    operations: ClassVar[set[str]]

    @initialize(
        size=st.integers(4, 6),
        padding=st.sampled_from(PADDING),
        histories=st.lists(HISTORY, max_size=2),
    )
    def start(self, size: int, padding: list[int], histories: list[list[int]]) -> None:
        """Begin with padded rows, or with sequences that join: the histories."""
        self.begin(size)
        padding = padding if self.kind.single else [0]
        if self.kind.single and "rows" in self.operations and histories:
            self.state = self.joined([self.single(lengths) for lengths in histories])
        else:
            code = self.kind.code.format(size=size, padding=padding)
            self.state = self.make("caches", code, self.kind.reference(size, padding))

    @rule(n=LENGTHS)
    def feed_block(self, n: int) -> None:
        if self.state.right.lengths is not None:
            # Not one token, and not past the longest prompt.
            left = max(self.state.right.lengths)
            n = left if max(n, 2) > left - 2 else max(n, 2)
        if n > 0:
            self.feed(self.state, n)

    @precondition(ready)
    @rule(n=st.integers(2, 7))
    def feed_singly(self, n: int) -> None:
        """They rotate a ring, and a block may follow at any point."""
        for _ in range(n):
            self.feed(self.state, 1)
            self.look(self.state)

    # What a release says of far trims is asked once, by the test of trims.
    @allowed("trim", lambda self: ready(self) and (self.exact or "snapshot" not in self.operations))
    @rule(n=st.integers(-1, LONGEST + 2))
    def trim(self, n: int) -> None:
        n, held = n if self.exact else max(n, 0), min(self.held)
        self.drop_most(LONGEST + 2 if self.exact else held)
        possible = self.can_trim(n, must=0 <= n <= self.state.droppable or (self.whole and 0 <= n <= held))
        if self.exact and not possible:
            self.too_many(n)
        if possible and (self.exact or 0 < n <= held):
            self.drop(n)

    @allowed("trim", ready)
    @rule(kept=st.integers(1, 5), n=st.integers(1, 4))
    def reject(self, kept: int, n: int) -> None:
        """A draft is fed and its end dropped, as a decode does."""
        if "snapshot" in self.adapter:
            self.do(f"adapter.snapshot({self.state.name})")
        self.feed(self.state, kept + n)
        self.trim(n)

    @allowed("snapshot rows", lambda self: "snapshot" in self.adapter)
    @rule()
    def snapshot(self) -> None:
        self.take()

    @allowed("snapshot rows", lambda self: bool(self.state.snapshots))
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        self.go_back(data.draw(st.sampled_from(self.state.snapshots)))

    @allowed("snapshot rows", lambda self: ready(self) and "snapshot" in self.adapter)
    @rule(n=st.integers(1, LONGEST))
    def go_back_twice(self, n: int) -> None:
        """Other tokens take the place of those that a snapshot holds."""
        first = self.take()
        self.feed(self.state, n)
        second = self.take()
        self.go_back(first)
        # A block past the window moves what a snapshot may share, and the next one shows it.
        self.feed(self.state, n)
        self.feed(self.state, n)
        self.go_back(second)
        self.go_back(first)

    @allowed("snapshot rows")
    @rule()
    def read(self) -> None:
        """Reading the state changes nothing."""
        before = self.look(self.state)
        mx.eval(self.do(f"[c.state for c in {self.state.name}]"))
        self.same(before, "after reading the state")

    @allowed("snapshot", lambda self: self.kind is KINDS["quantized on the way"])
    @rule(i=st.integers(0, 1), n=st.integers(0, 4))
    def quantize(self, i: int, n: int) -> None:
        """A snapshot puts back an entry that was replaced since."""
        if hasattr(self.caches[self.state.name][i], "to_quantized"):
            taken, entry = self.take(), f"{self.state.name}[{i}]"
            self.do(f"{entry}.to_quantized(group_size=32, bits=8)", entry)
            self.look(self.state)
            if n > 0:
                self.feed(self.state, n)
                self.go_back(taken)

    @allowed("rows", lambda self: self.exact and ready(self))
    @rule(n=st.integers(2, LONGEST), data=st.data())
    def reject_by_row(self, n: int, data: st.DataObject) -> None:
        """Right after a block, each row drops its own number of tokens."""
        self.do(f"adapter.snapshot({self.state.name})")
        self.feed(self.state, n)
        size = len(self.state.right.sizes)
        each = data.draw(st.lists(st.integers(0, n), min_size=size, max_size=size))
        if self.can_trim(each, must=max(each) <= self.state.droppable):
            self.drop(each)
        else:
            self.refused(each)
        # Rows that end at different places are where it may move them.
        self.read()

    @allowed("rows", begun)
    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        size = len(self.state.right.sizes)
        lengths = data.draw(st.lists(LENGTHS, min_size=size, max_size=size))
        padding = [max(lengths) - n for n in lengths]
        if max(padding) > 0:
            self.do(f"[c.prepare(lengths={lengths}, right_padding={padding}) for c in {self.state.name}]")
            self.state.right.lengths = list(lengths)
            self.changed()

    @allowed("rows", lambda self: not ready(self))
    @rule()
    def finalize(self) -> None:
        while max(self.state.right.lengths or [0]) > 0:
            self.feed_block(LONGEST)
        self.do(f"[c.finalize() for c in {self.state.name}]")
        self.state.right.finalize()
        self.changed()

    @allowed("rows", begun)
    @rule(data=st.data())
    def filter(self, data: st.DataObject) -> None:
        """Rows leave."""
        keep = sorted(data.draw(st.sets(st.integers(0, len(self.state.right.sizes) - 1), min_size=1)))

        def leave() -> None:
            self.do(f"[c.filter(mx.array({keep})) for c in {self.state.name}]")
            self.state.right.filter(keep)
            self.changed()

        self.undo_and_redo(leave)

    @allowed("rows", lambda self: begun(self) and len(self.state.right.sizes) < 4)
    @rule(histories=st.lists(HISTORY, min_size=1, max_size=2), later=HISTORY)
    def extend(self, histories: list[list[int]], later: list[int]) -> None:
        """Rows join."""
        other = self.joined([self.single(lengths) for lengths in histories])
        for n in later:
            self.feed(other, n)

        def join() -> None:
            self.do(f"[c.extend(o) for c, o in zip({self.state.name}, {other.name})]")
            self.state.right.extend(other.right)
            self.changed()

        self.undo_and_redo(join)

    def undo_and_redo(self, change: Callable[[], None]) -> None:
        """Change the rows. A snapshot from before brings the old ones back, or is refused."""
        taken, n = self.take() if "snapshot" in self.adapter else None, len(self.state.right.sizes)
        change()
        if taken is not None:
            self.go_back(taken)
            if len(self.state.right.sizes) == n:
                change()


def fixed(machine: type[CacheMachine]) -> dict[str, str]:
    """What is wrong at each step of programs that are the same for any tree, and show what the shortest one hides."""
    found = {}
    for i in range(FIXED):
        random, program, size, padding = Random(i), machine(), 4 + i % 3, PADDING[i // 3 % len(PADDING)]
        # Single tokens rotate a ring before a block comes.
        steps = [("feed", 1)] * random.randint(0, 8)
        for n in random.choices((1, 2, 5), k=4):
            trims = [("trim", random.randint(1, n + 4))] * ("trim" in machine.operations)
            steps += [("feed", n), *trims]
        done = [machine.kind.code.format(size=size, padding=padding)]
        if said := wrong_of(program.start, size=size, padding=padding, histories=[]):
            found[done[0]] = said
            continue
        for step, n in steps:
            done.append(f"{step} {n}")
            if said := wrong_of(program.trim, n) if step == "trim" else wrong_of(program.feed, program.state, n):
                found[", ".join(done)] = said
    return found


def wrong_of(step: Callable[..., object], *args: object, **options: object) -> str:
    """What is wrong with a step. It may be refused."""
    try:
        step(*args, **options)
    except Wrong as wrong:
        return wrong.sentence
    except pytest.skip.Exception:
        pass
    return ""


def run(kind: str, adapter: Adapters, *operations: str) -> None:
    """Run programs of these operations, and say what is wrong with the shortest one that fails."""
    lacking = {one: [name for name in NEEDS[one] if name not in adapter] for one in operations}
    if operations and (names := lacking[operations[-1]]):
        not_offered(f"the adapter has no {' and no '.join(names)}")
    if names := [name for name in KINDS[kind].classes if name not in NAMES]:
        not_offered(f"the tree has no {' and no '.join(names)}")
    done, found = set[str](), None
    possible = {one for one, names in lacking.items() if not names}
    members = {"kind": KINDS[kind], "adapter": adapter, "operations": possible, "done": done}
    machine = type("Machine", (CacheMachine,), members)
    try:
        with patch("hypothesis.internal.conjecture.engine.MAX_SHRINKING_SECONDS", SHORTEN, create=True):
            run_state_machine_as_test(machine, settings=ROWS if "rows" in possible else SEARCH)
    except Wrong as wrong:
        found = wrong
    if found is not None:
        # Its sentence depends on the time that there was to shorten it, which those of the others do not.
        broken(found.sentence, found.lines, fixed(machine))
    if operations and operations[-1] not in done:
        if of_series(adapter):
            broken(f"inconclusive: it refuses every {operations[-1]}")
        not_shown(f"it refuses every {operations[-1]}")
