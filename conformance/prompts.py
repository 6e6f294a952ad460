"""Prompts for the fixture that are the same on every machine."""

from __future__ import annotations

import random

from conformance.workloads import Message, chat, fenced, json_edit, json_lookup, repeat, tool_call

CODE = '''\
def load_orders(path, strict=True):
    """Read the orders of one file."""
    orders = []
    with open(path) as source:
        for line in source:
            fields = line.strip().split(",")
            if len(fields) != 3:
                if strict:
                    raise ValueError("bad line: " + line)
                continue
            name, amount, state = fields
            orders.append((name, int(amount), state))
    return orders
def total_amount(orders, state="open"):
    """Add up the orders in one state."""
    total = 0
    for name, amount, found in orders:
        if found == state:
            total += amount
    return total
def main(path):
    orders = load_orders(path)
    print(total_amount(orders))'''

PROSE = (
    "Return the number of bytes that were read. If the stream is at its end, the result is zero and the buffer is left "
    "as it was. A timeout of zero means that the call returns at once, even when no data is there. Other threads may "
    "use the object at the same time: each call takes the lock, and the order of the calls is not defined."
)


def rename() -> list[Message]:
    return chat(f"Rename `orders` to `rows`.\n{fenced(CODE)}")


def delete() -> list[Message]:
    return chat(f"Delete the line `total = 0`.\n{fenced(CODE)}")


def json() -> list[Message]:
    return json_edit(random.Random(5), 8)[:-1]


def lookup() -> list[Message]:
    return json_lookup(random.Random(6), 8)[:-1]


def tool() -> list[Message]:
    return tool_call(random.Random(7), 6)[:-1]


def quote() -> list[Message]:
    return chat(f"Quote the sentence that starts with `A timeout of`.\n{fenced(PROSE)}")


def echo() -> list[Message]:
    return repeat(PROSE)[:-1]


def nothing_to_copy() -> list[Message]:
    return chat("Write prose.\nThe object keeps")


PROMPTS = {make.__name__: make() for make in (rename, delete, json, lookup, tool, quote, echo, nothing_to_copy)}
