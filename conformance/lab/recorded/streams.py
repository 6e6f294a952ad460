"""The recorded answers and the real edits as streams for the simulation."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.lab.recorded.answers import ANSWERS, EDITS, SAMPLED, is_judge, read
from conformance.lab.texts.loops import loops
from conformance.lab.texts.recorded_streams import Request, Stream

# All answers that run into a loop, whatever was asked. They are no kind of work.
LOOPS = "(loops)"
# The id of <|im_end|>.
EOS = 2
PARTS = ("fit", "judge")


def stream(record: dict[str, object], prompt: Sequence[int], answer: Sequence[int]) -> Stream:
    said = [token for token in answer if token != EOS]
    kind = LOOPS if loops(said) else str(record["kind"])
    return Stream(kind, len(prompt), 0, (Request(list(prompt), list(answer), (EOS,)),))


def load(what: str, part: str | None = None) -> list[Stream]:
    """The streams of "answers", "sampled" or "edits", or those of one part: "fit" or "judge". Kinds stay together."""
    _, records = read({"answers": ANSWERS, "sampled": SAMPLED, "edits": EDITS}[what])
    chosen = [one for one in records if part is None or PARTS[is_judge(one["source"])] == part]
    found = [stream(one, one["prompt"], one["answer"]) for one in chosen]
    order = [*dict.fromkeys(one["kind"] for one in records), LOOPS]
    return sorted(found, key=lambda one: order.index(one.name))
