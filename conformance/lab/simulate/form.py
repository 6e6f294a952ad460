"""Estimate what a grammar gains: the recorded tables as JSON, with a fixed layout and with free white space.

python -m conformance.lab.simulate.form    # needs llguidance, and the tokenizer of scripts/model.sh

Each answer is decoded with the grammar of its table, without what it says of drafts and with it. The speed is the cost
of plain decoding divided by that of the blocks, with the block costs of three devices, of all answers and of the worst.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

from mlx_lm.draft import EditStrategy
from mlx_lm.grammar import GrammarProcessor, compile_grammar
from mlx_lm.utils import load_tokenizer

from conformance.arguments import parser
from conformance.lab.simulate.run import TABLES, Row, decode
from conformance.lab.streams import Stream, load
from conformance.smollm2 import path_of
from conformance.tables import table

KIND = "table to JSON"
STRING = r'STRING: /"([^"\\]|\\.)*"/'
NUMBER = r"NUMBER: /-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?/"
# The types of a JSON schema, and the terminals of a Lark grammar.
TYPES = {str: ("string", "STRING"), int: ("number", "NUMBER"), float: ("number", "NUMBER")}
TYPES |= {bool: ("boolean", '"true" | "false"'), type(None): ("null", '"null"')}


def columns(answer: str) -> dict[str, set[type]]:
    """The names of a table and the types of their values, from the JSON between its fences."""
    rows = json.loads(answer.split("```")[1])
    return {name: {type(row[name]) for row in rows} for name in rows[0]}


def fixed(found: dict[str, set[type]]) -> str:
    """The layout of the recorded answers, to the space."""
    fields = []
    for name, types in found.items():
        values = " | ".join(sorted({TYPES[one][1] for one in types}))
        fields.append(f"{json.dumps(f'  {json.dumps(name)}: ')} ({values})")
    row = ' ",\\n" '.join(fields)
    return f'start: "```\\n[\\n" row (",\\n" row)* "\\n]\\n```"\nrow: " {{\\n" {row} "\\n }}"\n{STRING}\n{NUMBER}\n'


def free(found: dict[str, set[type]]) -> str:
    values = {name: {"type": sorted({TYPES[one][0] for one in types})} for name, types in found.items()}
    item = {"type": "object", "properties": values, "required": [*values], "additionalProperties": False}
    return f'start: "```\\n" json "\\n```"\njson: %json {json.dumps({"type": "array", "items": item})}\n'


def rows(streams: list[Stream], tokenizer: Any) -> Iterator[list[str]]:
    for layout, says in product((fixed, free), (False, True)):
        speeds = []
        for costs in TABLES.values():
            row = Row()
            for stream in streams:
                (request,) = stream.requests
                found = columns(tokenizer.decode(request.answer, skip_special_tokens=True))
                made = GrammarProcessor(tokenizer, compile_grammar("lark", layout(found)))
                # A bound method says nothing of drafts.
                processors = [made if says else made.__call__]
                row.add(stream, decode(EditStrategy(), request, costs, processors=processors)[0])
            speeds.append(f"{row.by_name[KIND].speed:.2f} (worst {row.worst:.2f}: {row.worst_name})")
        yield [f"{layout.__name__} layout, drafts {'with' if says else 'without'} its word", *speeds]


def main() -> None:
    parser(__doc__, "python -m conformance.lab.simulate.form").parse_args()
    tokenizer = load_tokenizer(path_of("smollm2"))
    streams = [stream for stream in load("edits") if stream.name == KIND]
    print(table(["", *TABLES], list(rows(streams, tokenizer))))


if __name__ == "__main__":
    main()
