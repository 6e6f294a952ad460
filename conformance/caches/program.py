"""A program on prompt caches: lines of Python that are run one by one, each with what is right after it."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import mlx.core as mx
from mlx_lm.models import cache as cache_module

from conformance import first_line
from conformance.adapters import Adapters
from conformance.caches.kinds import KINDS, NAMES, Kind
from conformance.caches.layers import leaves
from conformance.caches.reference import Block, Reference
from conformance.oracle.findings import REFUSAL, refused
from conformance.subjects.architectures import WHOLE

# How many rows a cache grows by, so that a short program meets every boundary.
STEP = 4
# The first of the tokens that are shown to copies. Fewer are fed.
NEXT = 901
HEAD = """\
from mlx_lm.models.cache import *
from conformance.adapters import find
from conformance.caches.layers import *
adapter = find()
"""


class Wrong(Exception):
    """What is seen and what should be, and the program that shows it."""

    def __init__(self, sentence: str, lines: str) -> None:
        super().__init__(sentence)
        self.sentence, self.lines = sentence, lines


@dataclass
class Taken:
    """A snapshot, with what was right and what was seen at that time."""

    name: str
    right: Reference
    seen: list[Any]
    # Whether a row was cut below it since. Then it may be refused.
    cut: bool = False


@dataclass
class State:
    """One list of caches of a program, by its name there, and the right content."""

    name: str
    right: Reference
    snapshots: list[Taken] = field(default_factory=list)
    # The series promises to drop this many tokens of the last block.
    droppable: int = 0

    def cut(self, everything: bool = False) -> None:
        """Note which snapshots hold what may be overwritten."""
        for taken in self.snapshots:
            pairs = zip(taken.right.tokens, self.right.tokens, strict=False)
            taken.cut |= everything or any(len(held) > len(now) for held, now in pairs)


def of_series(adapter: Adapters) -> bool:
    """Whether the caches are asked through the functions of the series."""
    ours = getattr(cache_module, "snapshot_prompt_cache", None)
    return ours is not None and "snapshot" in adapter and adapter.snapshot is ours


class Program:
    kind: ClassVar[Kind]
    adapter: ClassVar[Adapters]
    # Which operations were done, in any program.
    done: ClassVar[set[str]]
    state: State

    def begin(self, size: int) -> None:
        self.size, self.lines = size, list[str]()
        self.caches = NAMES | {"adapter": self.adapter}
        # How many tokens were fed and names given so far.
        self.fed = self.named = 0
        # What only the series promises of its functions.
        self.exact = of_series(self.adapter)
        self.whole = all(name in (*WHOLE, "CacheList") for name in self.kind.classes)

    # Lines

    def do(self, code: str, name: str = "") -> Any:
        """Run a line. With a name it is an assignment."""
        self.lines.append(f"{name} = {code}" if name else code)
        try:
            if name:
                exec(self.lines[-1], self.caches)
                return None
            return eval(code, self.caches)
        except NotImplementedError as error:
            refused(error)
        except Exception as error:
            self.wrong(f"{code} raises {first_line(error)}")

    def ask(self, code: str) -> Any:
        """Run what changes nothing. It becomes a line of the program only where it shows what is wrong."""
        value = self.do(code)
        self.lines.pop()
        return value

    def refusal(self, code: str) -> str:
        """Run a line that the caches may refuse. Returns the error, if there is one."""
        try:
            eval(code, self.caches)
        except (*REFUSAL, AttributeError) as error:
            # A cache of which upstream drops nothing may lack the method.
            return str(error) or type(error).__name__
        except Exception as error:
            self.wrong(f"{code} raises {first_line(error)}", code)
        self.lines.append(code)
        return ""

    def wrong(self, sentence: str, *shown: str) -> NoReturn:
        """The last line, or one that is ``shown``, shows it."""
        *before, last = [*self.lines, *shown]
        last = last if " = " in last else f"print({last})"
        lines = "\n".join([*before, f"{last}  # {sentence}"])
        made = dict.fromkeys(re.findall(r"\b[A-Z]\w+(?=\()", lines))
        steps = [f"{name}.step = {STEP}\n" for name in made if hasattr(NAMES[name], "step")]
        raise Wrong(sentence, "".join([HEAD, *steps, lines]))

    def make(self, word: str, code: str, right: Reference) -> State:
        """Other caches, which a line makes."""
        self.named += 1
        state = State(f"{word}{self.named}", copy.deepcopy(right))
        self.do(code, state.name)
        return state

    def copied(self) -> State:
        return self.make("copy", f"copy.deepcopy({self.state.name})", self.state.right)

    # What is fed and seen

    def feed(self, state: State, n: int) -> None:
        """Feed tokens that were never fed, so that one that should be gone cannot look like another one."""
        self.fed += n
        code, block = fed("feed", state, self.fed - n + 1, n)
        tables = self.do(code)
        if seen := state.right.difference(tables, block):
            self.wrong(seen)
        state.droppable = min(n - 1, *state.right.sizes) if state.right.lengths is None else 0
        self.check_offsets(state)
        held = [one for cache in leaves(self.caches[state.name]) for one in getattr(cache, "cache", [])]
        if self.exact and n == 1 and any(type(one) is not mx.array for one in held):
            self.wrong(f"after a single token ArraysCache holds a {type(held[0]).__name__}, as if it could be trimmed")

    def check_offsets(self, state: State) -> None:
        code, right = f"offsets({state.name})", state.right.offsets
        for found in self.ask(code):
            if state.right.lengths is None and found not in (None, right if isinstance(found, list) else right[0]):
                self.wrong(f"the offset is {found} instead of {right}", code)

    def look(self, state: State) -> list[Any]:
        """What a next token and a next block would see."""
        found = []
        for n in (1, 4) if state.right.lengths is None else (2,):
            code, block = fed("look", state, NEXT, n)
            found.append(self.ask(code))
            if seen := copy.deepcopy(state.right).difference(found[-1], block):
                self.wrong(seen, code)
        return found

    def same(self, before: list[Any], when: str) -> None:
        """What is seen is bit for bit what it was before."""
        if self.look(self.state) != before:
            self.wrong(f"{when}, the next tokens see their rows in another order")

    # Trims

    @property
    def held(self) -> list[int]:
        """The most tokens that each row can drop. Only recurrent layers count padding."""
        alone = self.kind.classes == ["ArraysCache"]
        return [len(tokens) for tokens in self.state.right.tokens] if alone else self.state.right.sizes

    def can_trim(self, n: int | list[int], must: bool = False) -> bool:
        """Whether the caches say that they drop so many tokens, which is true. Of the series some trims ``must`` be."""
        code = f"adapter.can_trim({self.state.name}, {n})"
        possible = bool(self.ask(code))
        each = n if isinstance(n, list) else [n] * len(self.held)
        if self.exact and must and not possible:
            self.wrong(f"can_trim({n}) says no of {self.held} tokens", code)
        if self.exact and possible and any(m > held for m, held in zip(each, self.held, strict=True)):
            self.wrong(f"can_trim({n}) says yes of {self.held} tokens", code)
        return possible

    def drop(self, n: int | list[int]) -> None:
        dropped = self.do(f"adapter.trim({self.state.name}, {n})")
        if isinstance(dropped, type(n)) and dropped != n:
            self.wrong(f"can_trim({n}) says yes, and trim({n}) returns {dropped}")
        self.state.right.drop(n)
        # A window that is trimmed by nothing keeps no more of the last block.
        forgets = "ArraysCache" in self.kind.classes or (n == 0 and not self.whole)
        self.state.droppable = 0 if forgets or isinstance(n, list) else max(0, self.state.droppable - n)
        self.state.cut()
        self.done.add("trim")
        self.check_offsets(self.state)

    def drop_most(self, limit: int) -> None:
        """A copy drops the most tokens that it says it can, of which it would be wrong first."""
        own, self.state, n_lines = self.state, self.copied(), len(self.lines)
        if n := max(filter(self.can_trim, range(1, limit + 1)), default=0):
            self.drop(n)
            self.look(self.state)
        self.state = own
        del self.lines[n_lines - 1 :]

    def too_many(self, n: int) -> None:
        """A cache that can be trimmed by any number drops all that it has, as in upstream. Others refuse."""
        if n < 0 or not all(cache.is_trimmable() for cache in self.caches[self.state.name]):
            self.refused(n)
            return
        twin = self.copied()
        dropped = self.do(f"adapter.trim({twin.name}, {n})")
        # Padding counts, as a batch drops columns.
        held = min(map(len, twin.right.tokens))
        if not self.kind.single and dropped != held:
            self.wrong(f"trim({n}) of {held} tokens returns {dropped}")
        if dropped <= held:
            twin.right.drop(dropped)
            self.look(twin)
        del self.lines[-2:]

    def refused(self, n: int | list[int]) -> None:
        """Trimming too far drops nothing, and a cache that is asked raises an error that names it."""
        before, name = self.look(self.state), self.state.name
        if (dropped := self.do(f"adapter.trim({name}, {n})")) != 0:
            self.wrong(f"can_trim({n}) says no, and trim({n}) returns {dropped}")
        for i, cache in enumerate(self.caches[name]):
            clamps = not isinstance(n, list) and n > 0 and cache.is_trimmable()
            if not clamps and not self.ask(f"adapter.can_trim([{name}[{i}]], {n})"):
                code, of = f"{name}[{i}].trim({n})", type(cache).__name__
                if of not in (said := self.refusal(code)):
                    self.wrong(f"trim({n}) of {of} says {said or 'nothing'}", code)
        self.same(before, f"after trim({n}), which returns 0")
        self.lines.pop()

    # Snapshots

    def take(self) -> Taken:
        self.named += 1
        taken = Taken(f"taken{self.named}", copy.deepcopy(self.state.right), self.look(self.state))
        self.do(f"adapter.snapshot({self.state.name})", taken.name)
        self.state.snapshots = [*self.state.snapshots[-2:], taken]
        self.same(taken.seen, "after a snapshot")
        return taken

    def go_back(self, taken: Taken) -> None:
        code = f"adapter.restore({self.state.name}, {taken.name})"
        before = self.look(self.state) if taken.cut else []
        if said := self.refusal(code):
            if not taken.cut or not any(name in said for name in self.kind.classes):
                self.wrong(f"restore says {said!r}, and no cache that it names was cut below the snapshot", code)
            self.same(before, "after a restore that is refused")
            return
        self.state.right, self.state.droppable = copy.deepcopy(taken.right), 0
        self.state.cut()
        self.done.add("snapshot")
        self.check_offsets(self.state)
        self.same(taken.seen, f"after going back to {taken.name}")

    # Batches

    def changed(self) -> None:
        """The rows are others. What they say that they can drop, they drop exactly."""
        self.state.droppable = 0
        self.state.cut(everything=True)
        self.done.add("rows")
        self.check_offsets(self.state)
        self.look(self.state)
        if self.exact and self.state.right.lengths is None:
            self.drop_most(2)

    def single(self, lengths: list[int]) -> State:
        """A sequence that may join, and how its tokens are fed."""
        kind = KINDS[self.kind.single]
        state = self.make("row", kind.code.format(size=self.size), kind.reference(self.size, [0]))
        for n in lengths:
            self.feed(state, n)
        return state

    def joined(self, rows: list[State]) -> State:
        right = copy.deepcopy(rows[0].right)
        for row in rows[1:]:
            right.extend(row.right)
        return self.make("batch", f"merge({', '.join(row.name for row in rows)})", right)


def fed(function: str, state: State, first: int, n: int) -> tuple[str, Block]:
    """A line that feeds n tokens to each row, and these tokens."""
    block = [[1000 * i + first + t for t in range(n)] for i in range(len(state.right.sizes))]
    return f"{function}({state.name}, {', '.join(map(str, block))})", block
