"""What the programs on prompt caches are made of: each step is done, and what is seen of it is compared."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as cache_module

from conformance.adapters import Adapters
from conformance.caches.kinds import KINDS, WHOLE
from conformance.caches.layers import leaves
from conformance.caches.program import Program
from conformance.caches.reference import Block, Reference, difference

# The first of the tokens that are shown to copies. Fewer are fed.
NEXT = 901
# What is seen, with the line that shows it.
Seen = list[tuple[str, Any]]


@dataclass
class Taken:
    """A snapshot, with what was right and what was seen at that time."""

    name: str
    # The place of the line that took it.
    line: int
    references: list[Reference]
    seen: Seen
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


def of_series(adapter: Adapters) -> bool:
    """Whether the caches are asked through the functions of the series."""
    ours = getattr(cache_module, "snapshot_prompt_cache", None)
    return ours is not None and "snapshot" in adapter and adapter.snapshot is ours


class Steps:
    def __init__(self, kind: str, adapter: Adapters, size: int, done: set[str]) -> None:
        self.kind, self.size = KINDS[kind], size
        self.program = Program(self.kind, adapter)
        self.do, self.wrong = self.program.do, self.program.wrong
        # How many tokens were fed and names given so far.
        self.fed = self.named = 0
        # What only the series promises of its functions.
        self.exact = of_series(adapter)
        self.whole = all(name in (*WHOLE, "CacheList") for name in self.kind.classes)
        # Which operations were done, in any program.
        self.done = done

    def begin(self, padding: list[int], histories: list[list[int]]) -> None:
        """Begin with padded rows, or with sequences that join: the histories."""
        if histories:
            self.state = self.joined("caches", [self.single(lengths) for lengths in histories])
        else:
            self.state = State("caches", self.kind.references(self.size, padding))
            self.do(self.kind.written(self.size, padding), "caches")

    def new_name(self, word: str) -> str:
        self.named += 1
        return f"{word}{self.named}"

    def caches(self, state: State) -> list[Any]:
        found: list[Any] = self.program.names[state.name]
        return found

    # Feeding

    def feed(self, state: State, n: int) -> None:
        """Feed tokens that were never fed, so that one that should be gone cannot look like another one."""
        self.fed += n
        block = [[1000 * i + self.fed - n + 1 + t for t in range(n)] for i in range(len(state.sizes))]
        tables = self.do(f"feed({state.name}, {', '.join(map(str, block))})")
        if seen := difference(tables, state.references, block):
            self.wrong(seen)
        state.droppable = min(n - 1, *state.sizes) if self.kind.drops and not state.pending else 0
        self.check_offsets(state)
        held = [one for cache in leaves(self.caches(state)) for one in getattr(cache, "cache", [])]
        if self.exact and n == 1 and any(type(one) is not mx.array for one in held):
            self.wrong(f"after a single token ArraysCache holds a {type(held[0]).__name__}, as if it could be trimmed")

    def check_offsets(self, state: State) -> None:
        code = f"offsets({state.name})"
        for found, reference in zip(self.program.ask(code), state.references, strict=True):
            right = reference.offsets if isinstance(found, list) else reference.offsets[0]
            if found not in (None, right) and not state.pending:
                self.wrong(f"the offset is {found} instead of {right}", code)

    def look(self, state: State) -> Seen:
        """What a next token and a next block would see."""
        found = []
        for n in (2,) if state.pending else (1, 4):
            block: Block = [[1000 * i + NEXT + t for t in range(n)] for i in range(len(state.sizes))]
            code = f"look({state.name}, {', '.join(map(str, block))})"
            tables = self.program.ask(code)
            if seen := difference(tables, copy.deepcopy(state.references), block):
                self.wrong(seen, code)
            found.append((code, tables))
        return found

    def same(self, before: Seen, state: State, when: str, line: int) -> None:
        """What is seen is bit for bit what it was at that line."""
        for (code, was), (_, now) in zip(before, self.look(state), strict=True):
            if was != now:
                self.program.lines.insert(line, f"before = {code}")
                self.wrong(f"{when}, the next tokens see their rows in another order", f"before, {code}")

    # Trims

    @property
    def held(self) -> list[int]:
        """The most tokens that each row can drop. Only recurrent layers count padding."""
        alone = self.kind.classes == ["ArraysCache"]
        return [len(tokens) for tokens in self.state.references[0].tokens] if alone else self.state.sizes

    def can_trim(self, n: int | list[int], must: bool) -> bool:
        """Whether the caches say that they drop so many tokens, which is true. Of the series some trims ``must`` be."""
        code = f"can_trim({self.state.name}, {n})"
        possible = bool(self.program.ask(code))
        each = n if isinstance(n, list) else [n] * len(self.held)
        if self.exact and must and not possible:
            self.wrong(f"can_trim({n}) says no of {self.held} tokens", code)
        if self.exact and possible and any(m > held for m, held in zip(each, self.held, strict=True)):
            self.wrong(f"can_trim({n}) says yes of {self.held} tokens", code)
        return possible

    def drop(self, n: int | list[int]) -> None:
        dropped = self.do(f"trim({self.state.name}, {n})")
        if isinstance(dropped, type(n)) and dropped != n:
            self.wrong(f"can_trim({n}) says yes, and trim({n}) returns {dropped}")
        for reference in self.state.references:
            reference.drop(n)
        # A window that is trimmed by nothing keeps no more of the last block.
        forgets = "ArraysCache" in self.kind.classes or (n == 0 and not self.whole)
        self.state.droppable = 0 if forgets or isinstance(n, list) else max(0, self.state.droppable - n)
        self.state.cut()
        self.done.add("trim")
        self.check_offsets(self.state)

    def too_many(self, n: int) -> None:
        """A cache that can be trimmed by any number drops all that it has, as in upstream. Others refuse."""
        if n < 0 or not all(cache.is_trimmable() for cache in self.caches(self.state)):
            self.refused(n)
            return
        twin = State(self.new_name("twin"), copy.deepcopy(self.state.references))
        self.do(f"copy.deepcopy({self.state.name})", twin.name)
        dropped = self.do(f"trim({twin.name}, {n})")
        # Padding counts, as a batch drops columns.
        held = min(len(tokens) for reference in twin.references for tokens in reference.tokens)
        if not self.kind.single and dropped != held:
            self.wrong(f"trim({n}) of {held} tokens returns {dropped}")
        if dropped <= held:
            for reference in twin.references:
                reference.drop(dropped)
            self.look(twin)
        del self.program.lines[-2:]

    def refused(self, n: int | list[int]) -> None:
        """Trimming too far drops nothing, and a cache that is asked raises an error that names it."""
        before, line = self.look(self.state), len(self.program.lines)
        if (dropped := self.do(f"trim({self.state.name}, {n})")) != 0:
            self.wrong(f"can_trim({n}) says no, and trim({n}) returns {dropped}")
        for i, cache in enumerate(self.caches(self.state)):
            clamps = not isinstance(n, list) and n > 0 and cache.is_trimmable()
            if not clamps and not self.program.ask(f"can_trim([{self.state.name}[{i}]], {n})"):
                name, code = type(cache).__name__, f"{self.state.name}[{i}].trim({n})"
                if name not in (said := self.program.refusal(code)):
                    self.wrong(f"trim({n}) of {name} says {said or 'nothing'}", code)
        self.same(before, self.state, f"after trim({n}), which returns 0", line)
        self.program.lines.pop()

    # Snapshots

    def take(self) -> Taken:
        seen, line = self.look(self.state), len(self.program.lines)
        taken = Taken(self.new_name("taken"), line, copy.deepcopy(self.state.references), seen)
        self.do(f"snapshot({self.state.name})", taken.name)
        self.state.snapshots = [*self.state.snapshots[-2:], taken]
        self.same(seen, self.state, "after a snapshot", line)
        return taken

    def go_back(self, taken: Taken) -> None:
        before, line = self.look(self.state) if taken.cut else [], len(self.program.lines)
        code = f"restore({self.state.name}, {taken.name})"
        if said := self.program.refusal(code):
            if not taken.cut or not any(name in said for name in self.kind.classes):
                self.wrong(f"restore says {said!r}, and no cache that it names was cut below the snapshot", code)
            self.same(before, self.state, "after a restore that is refused", line)
            return
        self.state.references, self.state.droppable = copy.deepcopy(taken.references), 0
        self.state.cut()
        self.done.add("snapshot")
        self.check_offsets(self.state)
        self.same(taken.seen, self.state, f"after going back to {taken.name}", taken.line)

    # Batches

    def changed(self) -> None:
        self.state.droppable = 0
        self.state.cut(everything=True)
        self.done.add("rows")
        self.check_offsets(self.state)
        self.look(self.state)
        for n in (1, 2) if self.exact and not self.state.pending else ():
            if self.can_trim(n, must=False):
                self.drop_of_a_copy(n)

    def drop_of_a_copy(self, n: int) -> None:
        """What a batch that was changed says that it can drop, it drops exactly."""
        own, self.state = self.state, State(self.new_name("twin"), copy.deepcopy(self.state.references))
        self.do(f"copy.deepcopy({own.name})", self.state.name)
        self.drop(n)
        self.look(self.state)
        self.state = own

    def single(self, lengths: list[int]) -> State:
        """A sequence that may join, and how its tokens are fed."""
        kind = KINDS[self.kind.single]
        state = State(self.new_name("row"), kind.references(self.size))
        self.do(kind.written(self.size, [0]), state.name)
        for n in lengths:
            self.feed(state, n)
        return state

    def joined(self, name: str, rows: list[State]) -> State:
        state = State(name, copy.deepcopy(rows[0].references))
        for row in rows[1:]:
            for reference, joined in zip(state.references, row.references, strict=True):
                reference.extend(joined)
        self.do(f"merge({', '.join(row.name for row in rows)})", name)
        return state
