"""Conversations of one's own as token streams: each turn of the assistant is a request, and the turn its known answer.

A file has a conversation a line, a JSON object with "messages" in OpenAI's form, or it is a JSON array of runs with a
"traj" of such messages, as tau-bench's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from mlx_lm.server import process_message_content
from mlx_lm.utils import load_tokenizer

from conformance.lab.streams import Request, Stream

Message = dict[str, Any]
# The text of messages, and behind it what an answer begins with, if one is asked for.
Render = Callable[[list[Message], bool], str]


def records(text: str) -> Iterator[tuple[str, Any]]:
    """The conversations of a file, each with its place: the runs of an array, or lines that are not parsed yet."""
    if text.lstrip().startswith("["):
        return ((f"run {n}", run) for n, run in enumerate(json.loads(text), 1))
    # Other ends of lines may be within a string.
    return ((f"line {n}", line) for n, line in enumerate(text.split("\n"), 1) if line.strip())


def called(message: Message) -> list[str]:
    return [call["function"]["name"] for call in message.get("tool_calls", ())]


def conversation(record: Any) -> tuple[list[Message], Any]:
    """The messages of a line or of a run as mlx_lm.server gives them to a chat template, and the tools beside them.

    Raises:
        ValueError: if it is none, and why.
    """
    try:
        found = json.loads(record) if isinstance(record, str) else record
    except (ValueError, RecursionError):
        raise ValueError("no JSON: a conversation is one line") from None
    listed = found.get("messages", found.get("traj")) if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise ValueError('no object with a list "messages" or "traj"')
    if not all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in listed):
        raise ValueError("a message has no role")
    if all(one["role"] != "assistant" for one in listed[1:]):
        raise ValueError("it has no answer")
    # Templates ask whether a field is there, and not whether it is null.
    messages = [{name: value for name, value in one.items() if value is not None} for one in listed]
    try:
        process_message_content(messages)
        texts = [text for one in messages for text in (one["content"], *called(one))]
        # Half of a surrogate pair is no text for a tokenizer.
        "".join([*texts, json.dumps(messages, ensure_ascii=False)]).encode()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"not in OpenAI's form ({error!r})") from error
    return messages, found.get("tools")


def templated(tokenizer: Any, tools: Any) -> Render:
    """The tokenizer's chat template. Most know no developer."""
    names = {} if "developer" in str(tokenizer.chat_template) else {"developer": "system"}

    def render(messages: list[Message], asks: bool) -> str:
        listed = [one | {"role": names.get(one["role"], one["role"])} for one in messages]
        text = tokenizer.apply_chat_template(listed, tools=tools, add_generation_prompt=asks, tokenize=False)
        return str(text)

    return render


def plain(messages: list[Message], asks: bool) -> str:
    """The plain form: roles, texts, and calls as JSON."""
    text = ""
    for one in messages:
        calls = [json.dumps(call["function"], ensure_ascii=False) for call in one.get("tool_calls", ())]
        text += "\n".join([f"{one['role']}:", *filter(None, [one["content"], *calls])]) + "\n\n"
    return text + "assistant:\n" * asks


def turns(messages: list[Message], render: Render, tokenizer: Any) -> list[Stream]:
    """The turns of the assistant, each with the whole conversation before it as its prompt."""
    found, eos = list[Stream](), tuple(tokenizer.eos_token_ids)
    for i in (i for i, one in enumerate(messages) if i > 0 and one["role"] == "assistant"):
        before, told, calls = render(messages[:i], False), render(messages[: i + 1], False), called(messages[i])
        if not told.startswith(before) or any(name not in told[len(before) :] for name in calls):
            raise ValueError("it leaves out a call, or changes what is before an answer")
        texts = (render(messages[:i], True), told)
        prompt, whole = (list(tokenizer.encode(text, add_special_tokens=False, verbose=False)) for text in texts)
        # A prompt may end in the mark of a thought that the turn does not have.
        n = len([*takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False))])
        end = next((end for end in range(n, len(whole)) if whole[end] in eos), len(whole))
        answer = whole[n : end + 1]
        if len(answer) > 1:
            found.append(Stream("calls" if calls else "text", len(prompt), 0, (Request(prompt, answer, eos),)))
    return found


def brief(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def load(path: Path, folder: Path) -> list[Stream]:
    """The turns of a file. What cannot be used of it is named on stderr.

    Raises:
        OSError, ValueError: if nothing can be used, and why.
    """
    if not folder.is_dir():
        raise ValueError("the tokenizer is no folder here.")
    try:
        tokenizer = load_tokenizer(folder)
    except Exception as error:  # tokenizers raises nothing more special
        raise ValueError(f"no tokenizer can be loaded: {brief(error)}") from error
    found, plainly, n_read = list[Stream](), list[str](), 0
    for where, record in records(path.read_text("utf-8-sig")):
        try:
            messages, tools = conversation(record)
        except ValueError as error:
            print(f"{path.name}, {where}: {error}", file=sys.stderr)
            continue
        n_read += 1
        try:
            found += turns(messages, templated(tokenizer, tools), tokenizer)
        except Exception as error:  # a template is a program of others
            plainly.append(f"{where}: {brief(error)}")
            found += turns(messages, plain, tokenizer)
    if plainly:
        told = f"{len(plainly)} of {n_read} conversations are not in the chat template but in a plain form"
        print(f"{path.name}: {told} ({plainly[0]})", file=sys.stderr)
    if not found:
        raise ValueError("it has no turn to decode.")
    return found
