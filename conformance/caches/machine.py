"""Random programs on prompt caches. What each token sees is compared with lists of tokens."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import mlx.core as mx
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from mlx_lm.models import cache as cache_module

from conformance.adapters import Adapters
from conformance.caches.kinds import KINDS, WHOLE
from conformance.caches.layers import leaves
from conformance.caches.program import Program, Wrong
from conformance.caches.reference import Block, Reference, difference
from conformance.oracle.findings import broken, not_offered, not_shown

FULL = os.environ.get("CONFORMANCE_PROFILE") == "full"
SEARCH = settings(
    max_examples=int(os.environ.get("EX", 60)),
    stateful_step_count=int(os.environ.get("ST", 12)),
    derandomize='RND' not in os.environ, phases=[Phase.generate] if 'GEN' in os.environ else list(Phase),
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    verbosity=Verbosity.quiet,
    suppress_health_check=list(HealthCheck),
)
# The most tokens that are fed at once.
LONGEST = 9
SNAPSHOTS = 3
LENGTHS = st.integers(1, LONGEST)
HISTORIES = st.lists(st.lists(LENGTHS, max_size=2), min_size=1, max_size=2)


@dataclass
class Taken:
    """A snapshot, with what was right and what was seen at that time."""

    name: str
    # The place of the line that took it.
    line: int
    references: list[Reference]
    seen: list[Any]
    # Whether a row was cut below it since. Then it may be refused.
    cut: bool = False


@dataclass
class State:
    """One list of caches of a program, by its name there, and the right content."""

    name: str
    references: list[Reference]
    snapshots: list[Taken] = field(default_factory=list)
    # The series promises to drop this many tokens of the last block.
    droppable: int = 0

    @property
    def sizes(self) -> list[int]:
        return self.references[0].sizes

    @property
    def pending(self) -> bool:
        """Whether prompts with padding on the right are being fed."""
        return self.references[0].lengths is not None

    def cut(self, everything: bool = False) -> None:
        """Note which snapshots hold what may be overwritten."""
        for taken in self.snapshots:
            pairs = zip(taken.references[0].tokens, self.references[0].tokens, strict=False)
            taken.cut |= everything or any(len(held) > len(now) for held, now in pairs)


def allowed(name: str, condition: Callable[[CacheMachine], bool] = lambda _: True) -> Callable[[Any], Any]:
    """A rule is for tests of this operation, where a condition holds."""
    return precondition(lambda self: name in self.operations and condition(self))


def ready(self: CacheMachine) -> bool:
    return not self.state.pending


def begun(self: CacheMachine) -> bool:
    """Whether each row has a token, so that a batch may change."""
    return ready(self) and min(self.state.sizes) > 0


class CacheMachine(RuleBasedStateMachine):
    kind_name: ClassVar[str]
    adapter: ClassVar[Adapters]
    operations: ClassVar[set[str]]
    # How often each operation was done.
    done: ClassVar[dict[str, int]]

    @initialize(size=st.integers(4, 6), padding=st.sampled_from([[0, 2], [0], [1, 0, 3]]), histories=HISTORIES)
    def start(self, size: int, padding: list[int], histories: list[list[int]]) -> None:
        self.kind, self.size, self.fresh, self.named = KINDS[self.kind_name], size, 0, 0
        self.program = Program(self.kind, self.adapter)
        self.batched = bool(self.kind.single)
        self.other: State | None = None
        # What only the series promises of its functions.
        self.exact = getattr(cache_module, "snapshot_prompt_cache", None) is self.program.names.get("snapshot", 0)
        self.recurrent = "ArraysCache" in self.kind.classes
        self.whole = all(name in (*WHOLE, "CacheList") for name in self.kind.classes)
        rows = padding if self.batched else [0]
        self.state = State("caches", self.kind.references(size, rows))
        if self.batched and "rows" in self.operations and len(histories) > 1:
            self.state = self.joined("caches", [self.single(lengths) for lengths in histories])
        else:
            self.program.do(self.kind.written(size, rows), "caches")

    # What every step is made of

    def new_name(self, word: str) -> str:
        self.named += 1
        return f"{word}{self.named}"

    def block(self, n: int, state: State) -> Block:
        """Tokens that were never fed, so that one that should be gone cannot look like another one."""
        self.fresh += n
        return [[1000 * i + self.fresh - n + 1 + t for t in range(n)] for i in range(len(state.sizes))]

    def feed(self, state: State, n: int) -> None:
        block = self.block(n, state)
        tables = self.program.do(f"feed({state.name}, {', '.join(map(str, block))})")
        if wrong := difference(tables, state.references, block):
            self.program.wrong(wrong)
        trims = self.kind.drops and not state.pending
        state.droppable = min(n - 1, *state.sizes) if trims else 0
        self.check(state)
        if self.exact and n == 1:
            for cache in leaves(self.program.names[state.name]):
                for held in getattr(cache, "cache", []):
                    if type(held) is not mx.array:
                        self.program.wrong(f"after a single token ArraysCache holds a {type(held).__name__}")

    def check(self, state: State) -> None:
        """What can be seen without feeding."""
        caches = self.program.names[state.name]
        if not state.pending:
            for is_, one in zip(self.program.ask(f"offsets({state.name})"), self.by_layer(state), strict=True):
                right = one.offsets if isinstance(is_, list) else one.offsets[0]
                if is_ is not None and is_ != right:
                    self.program.wrong(f"the offset is {is_} instead of {right}", f"offsets({state.name})")
        for cache, one in zip(leaves(caches), self.by_layer(state), strict=True):
            if type(cache).__name__ in ("KVCache", "RotatingKVCache"):
                right = len(one.view(one.rows[0]))
                if cache.size() != right:
                    say = f"[c.size() for c in leaves({state.name})]"
                    self.program.wrong(f"the size of {type(cache).__name__} is {cache.size()} instead of {right}", say)

    def by_layer(self, state: State) -> list[Reference]:
        """A reference for each layer: those of several states hold the same tokens."""
        per = {"ArraysCache": 2, "LayerCache": 2}
        found, at = [], 0
        for cache in leaves(self.program.names[state.name]):
            found.append(state.references[at])
            at += per.get(type(cache).__name__, 1)
        return found

    def look(self, state: State) -> list[tuple[str, Any]]:
        """What a next token and a next draft would see, each with the line that shows it."""
        found = []
        for n in (1, 4) if not state.pending else (2,):
            block = [[10**6 + 10 * i + t for t in range(n)] for i in range(len(state.sizes))]
            code = f"look({state.name}, {', '.join(map(str, block))})"
            seen = self.program.ask(code)
            if wrong := difference(seen, copy.deepcopy(state.references), block):
                self.program.wrong(wrong, code)
            found.append((code, seen))
        return found

    def same(self, before: list[tuple[str, Any]], state: State, what: str, line: int) -> None:
        """What is seen is bit for bit what it was at that line."""
        for (code, was), (_, seen) in zip(before, self.look(state), strict=True):
            if was != seen:
                self.program.lines.insert(line, f"before = {code}")
                self.program.wrong(f"{what}, the rows of the next tokens are in another order", f"before, {code}")

    # Blocks

    @rule(n=LENGTHS)
    def feed_block(self, n: int) -> None:
        if self.state.pending:
            # Not one token, and not past the longest prompt.
            left = max(self.state.references[0].lengths or [0])
            n = left if max(n, 2) > left - 2 else max(n, 2)
        if n > 0:
            self.feed(self.state, n)

    @precondition(ready)
    @rule(n=st.integers(2, 7))
    def feed_singly(self, n: int) -> None:
        for _ in range(n):
            self.feed(self.state, 1)

    # Trims

    def can_trim(self, n: int | list[int]) -> bool:
        return bool(self.program.ask(f"can_trim({self.state.name}, {n})"))

    def held(self) -> list[int]:
        """The most tokens that each row can drop. Only recurrent layers count padding."""
        alone = all(name == "ArraysCache" for name in self.kind.classes)
        return [len(tokens) for tokens in self.state.references[0].tokens] if alone else self.state.sizes

    @allowed("trim", ready)
    @rule(n=st.integers(0, LONGEST + 2))
    def trim(self, n: int) -> None:
        possible, held, code = self.can_trim(n), min(self.held()), f"can_trim({self.state.name}, {n})"
        if self.exact:
            must = n <= self.state.droppable or self.whole and n <= held
            if must and not possible:
                self.program.wrong(f"can_trim({n}) says no of {held} tokens, the last ones of a block", code)
            if possible and n > held:
                self.program.wrong(f"can_trim({n}) says yes of {held} tokens", code)
            if not possible:
                self.too_many(n)
        if possible and 0 < n <= held or possible and self.exact:
            self.drop(n)

    def drop(self, n: int | list[int]) -> None:
        dropped = self.program.do(f"trim({self.state.name}, {n})")
        if isinstance(dropped, type(n)) and dropped != n:
            self.program.wrong(f"can_trim({n}) says yes, and trim({n}) returns {dropped}")
        for reference in self.state.references:
            reference.drop(n)
        # A window that is trimmed by nothing keeps no more of the last block.
        forgets = self.recurrent or isinstance(n, list) or (n == 0 and not self.whole)
        self.state.droppable = 0 if forgets else max(0, self.state.droppable - n)
        self.state.cut()
        self.done["trim"] += 1
        self.check(self.state)

    @allowed("trim", ready)
    @rule(kept=st.integers(1, 5), n=st.integers(1, 4))
    def reject(self, kept: int, n: int) -> None:
        """A draft is fed and its end dropped, as a decode does. It is as if the end was never there."""
        if "snapshot" in self.adapter:
            self.program.do(f"snapshot({self.state.name})")
        self.feed(self.state, kept + n)
        self.trim(n)

    @allowed("trim", lambda self: self.exact and ready(self))
    @rule(n=st.sampled_from([-1, 10**6]))
    def trim_nonsense(self, n: int) -> None:
        self.too_many(n)

    def too_many(self, n: int) -> None:
        """A cache that can be trimmed by any number drops all that it has, as in upstream. Others refuse."""
        if n < 0 or not all(cache.is_trimmable() for cache in self.program.names[self.state.name]):
            self.refused(n)
            return
        twin = State(self.new_name("twin"), copy.deepcopy(self.state.references))
        self.program.do(f"copy.deepcopy({self.state.name})", twin.name)
        dropped = self.program.do(f"trim({twin.name}, {n})")
        # Padding counts, as a batch drops columns.
        held = min(len(tokens) for reference in twin.references for tokens in reference.tokens)
        if not self.batched and dropped != held:
            self.program.wrong(f"trim({n}) of {held} tokens returns {dropped}")
        if dropped <= held:
            for reference in twin.references:
                reference.drop(dropped)
            self.look(twin)
        del self.program.lines[-2:]

    def refused(self, n: int | list[int]) -> None:
        """Trimming too far drops nothing, and a cache that is asked raises an error that names it."""
        before, line = self.look(self.state), len(self.program.lines)
        if (dropped := self.program.do(f"trim({self.state.name}, {n})")) != 0:
            self.program.wrong(f"can_trim({n}) says no, and trim({n}) returns {dropped}")
        for i, cache in enumerate(self.program.names[self.state.name]):
            clamps = not isinstance(n, list) and n > 0 and cache.is_trimmable()
            if not clamps and not self.program.ask(f"can_trim([{self.state.name}[{i}]], {n})"):
                said = self.program.refusal(code := f"{self.state.name}[{i}].trim({n})")
                if type(cache).__name__ not in said:
                    self.program.wrong(f"trim({n}) of {type(cache).__name__} says {said or 'nothing'}", code)
        self.same(before, self.state, f"after trim({n}), which returns 0", line)
        self.program.lines.pop()

    # Snapshots

    @allowed("snapshot", lambda self: len(self.state.snapshots) < SNAPSHOTS)
    @rule()
    def snapshot(self) -> None:
        self.take()

    def take(self) -> Taken:
        seen, name, line = self.look(self.state), self.new_name("taken"), len(self.program.lines)
        self.program.do(f"snapshot({self.state.name})", name)
        self.state.snapshots.append(Taken(name, line, copy.deepcopy(self.state.references), seen))
        self.same(seen, self.state, "after a snapshot", line)
        return self.state.snapshots[-1]

    @allowed("snapshot", lambda self: self.state.snapshots)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        self.go_back(data.draw(st.sampled_from(self.state.snapshots)))

    def go_back(self, taken: Taken) -> None:
        before, line = self.look(self.state) if taken.cut else [], len(self.program.lines)
        code = f"restore({self.state.name}, {taken.name})"
        said = self.program.refusal(code)
        if said:
            if not taken.cut:
                self.program.wrong(f"{taken.name} is refused: {said}", code)
            if not any(name in said for name in self.kind.classes):
                self.program.wrong(f"restore says {said} and names no cache", code)
            self.same(before, self.state, "after a restore that is refused", line)
            return
        self.state.references, self.state.droppable = copy.deepcopy(taken.references), 0
        self.state.cut()
        self.done["restore"] += 1
        self.check(self.state)
        self.same(taken.seen, self.state, f"after going back to {taken.name}", taken.line)

    @allowed("snapshot", lambda self: ready(self) and len(self.state.snapshots) < SNAPSHOTS - 1)
    @rule(n=st.integers(1, 4))
    def go_back_twice(self, n: int) -> None:
        """Other tokens take the place of those that a snapshot holds."""
        first = self.take()
        self.feed(self.state, n)
        second = self.take()
        self.go_back(first)
        self.feed(self.state, n)
        self.go_back(second)

    @allowed("snapshot", lambda self: self.state.snapshots)
    @rule(i=st.integers(0, SNAPSHOTS - 1))
    def forget(self, i: int) -> None:
        del self.state.snapshots[i : i + 1]

    @allowed("snapshot")
    @rule()
    def read(self) -> None:
        """Reading the state changes nothing."""
        before, line = self.look(self.state), len(self.program.lines)
        mx.eval(self.program.do(f"[c.state for c in {self.state.name}]"))
        self.same(before, self.state, "after reading the state", line)

    @allowed("snapshot")
    @rule()
    def fork(self) -> None:
        """Copy the caches, as the server does, and go on with these or with the copy."""
        self.other = State(self.new_name("copy"), copy.deepcopy(self.state.references))
        self.program.do(f"copy.deepcopy({self.state.name})", self.other.name)

    @allowed("snapshot", lambda self: self.other is not None)
    @rule()
    def swap(self) -> None:
        assert self.other is not None
        self.state, self.other = self.other, self.state
        self.look(self.state)

    @allowed("snapshot", lambda self: self.kind_name == "quantized on the way")
    @rule(i=st.integers(0, 1))
    def quantize(self, i: int) -> None:
        """A snapshot puts back an entry that was replaced since."""
        if hasattr(self.program.names[self.state.name][i], "to_quantized"):
            entry = f"{self.state.name}[{i}]"
            self.program.do(f"{entry}.to_quantized(group_size=32, bits=8)", entry)
            self.look(self.state)

    # The rows of a batch

    @allowed("rows", lambda self: self.exact and ready(self))
    @rule(n=st.integers(2, LONGEST), data=st.data())
    def reject_by_row(self, n: int, data: st.DataObject) -> None:
        """Right after a block, each row drops its own number of tokens."""
        self.program.do(f"snapshot({self.state.name})")
        self.feed(self.state, n)
        size = len(self.state.sizes)
        each = data.draw(st.lists(st.integers(0, n), min_size=size, max_size=size))
        possible, code = self.can_trim(each), f"can_trim({self.state.name}, {each})"
        if not possible:
            if max(each) <= self.state.droppable:
                self.program.wrong(f"can_trim({each}) says no after a block of {n}", code)
            self.refused(each)
            return
        if any(m > held for m, held in zip(each, self.held(), strict=True)):
            self.program.wrong(f"can_trim({each}) says yes of {self.held()} tokens", code)
        self.drop(each)

    @allowed("rows", lambda self: self.exact and ready(self))
    @rule(n=st.integers(1, 2), more=st.sampled_from([-1, 1]))
    def another_number_of_rows(self, n: int, more: int) -> None:
        if (rows := len(self.state.sizes) + more) > 0:
            self.refused([n] * rows)

    def changed(self) -> None:
        self.state.droppable = 0
        self.state.cut(everything=True)
        self.done["rows"] += 1
        self.check(self.state)
        self.look(self.state)

    @allowed("rows", begun)
    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        size = len(self.state.sizes)
        lengths = data.draw(st.lists(LENGTHS, min_size=size, max_size=size))
        padding = [max(lengths) - n for n in lengths]
        if max(padding) > 0:
            self.program.do(f"[c.prepare(lengths={lengths}, right_padding={padding}) for c in {self.state.name}]")
            for reference in self.state.references:
                reference.prepare(lengths)
            self.changed()

    @allowed("rows", lambda self: self.state.pending)
    @rule()
    def finalize(self) -> None:
        while max(self.state.references[0].lengths or [0]) > 0:
            self.feed_block(LONGEST)
        self.program.do(f"[c.finalize() for c in {self.state.name}]")
        for reference in self.state.references:
            reference.finalize()
        self.changed()

    @allowed("rows", begun)
    @rule(data=st.data(), back=st.booleans())
    def filter(self, data: st.DataObject, back: bool) -> None:
        """Rows leave. A snapshot from before brings them back, or is refused."""
        keep = sorted(data.draw(st.sets(st.integers(0, len(self.state.sizes) - 1), min_size=1)))
        taken = self.take() if back else None
        self.program.do(f"[c.filter(mx.array({keep})) for c in {self.state.name}]")
        for reference in self.state.references:
            reference.filter(keep)
        self.changed()
        if taken is not None:
            self.go_back(taken)

    def single(self, lengths: list[int]) -> State:
        kind = KINDS[self.kind.single]
        state = State(self.new_name("row"), kind.references(self.size))
        self.program.do(kind.written(self.size, [0]), state.name)
        for n in lengths:
            self.feed(state, n)
        return state

    def joined(self, name: str, rows: list[State]) -> State:
        state = State(name, copy.deepcopy(rows[0].references))
        for row in rows[1:]:
            for reference, joined in zip(state.references, row.references, strict=True):
                reference.extend(joined)
        self.program.do(f"merge({', '.join(row.name for row in rows)})", name)
        return state

    @allowed("rows", lambda self: begun(self) and len(self.state.sizes) < 4)
    @rule(histories=HISTORIES, later=st.lists(LENGTHS, max_size=2))
    def extend(self, histories: list[list[int]], later: list[int]) -> None:
        other = self.joined(self.new_name("batch"), [self.single(lengths) for lengths in histories])
        for n in later:
            self.feed(other, n)
        self.program.do(f"[c.extend(o) for c, o in zip({self.state.name}, {other.name})]")
        for reference, joined in zip(self.state.references, other.references, strict=True):
            reference.extend(joined)
        self.changed()

    @allowed("rows", begun)
    @rule()
    def split(self) -> None:
        """Extract each row, then merge them into new caches."""
        rows = []
        for i in range(len(self.state.sizes)):
            row = State(self.new_name("row"), copy.deepcopy(self.state.references))
            self.program.do(f"[c.extract({i}) for c in {self.state.name}]", row.name)
            for reference in row.references:
                reference.filter([i])
            self.look(row)
            rows.append(row)
        self.state.references = self.joined(self.state.name, rows).references
        self.changed()


def run(kind: str, adapter: Adapters, *operations: str) -> None:
    """Run programs of these operations, and say what is wrong with the shortest one that fails."""
    needs = {"trim": ("can_trim", "trim"), "snapshot": ("snapshot", "restore")}
    if lacking := [name for one in operations[-1:] for name in needs.get(one, ()) if name not in adapter]:
        not_offered(f"the adapter has no {' and no '.join(lacking)}")
    possible = {one for one in operations if all(name in adapter for name in needs.get(one, ()))}
    KINDS[kind].names  # noqa: B018 - the tree has its classes
    done = dict.fromkeys(("trim", "restore", "rows"), 0)
    members = {"kind_name": kind, "adapter": adapter, "operations": possible, "done": done}
    try:
        run_state_machine_as_test(type("Machine", (CacheMachine,), members), settings=SEARCH)
    except Wrong as wrong:
        found = wrong
    else:
        found = None
    if found is not None:
        broken(found.sentence, found.lines)
    for name, what in (("trim", "trim"), ("snapshot", "restore"), ("rows", "rows")):
        if operations and name == operations[-1] and not done[what]:
            not_shown(f"it refuses every {what}")
