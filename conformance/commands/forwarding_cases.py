"""The cases of test_forwarding.py: the place where each option of each command has an effect.

A case has the value that a user types, a place in the record of ``doors.commands``, and the value that must
be there. A place below ``step`` is checked for every way in which a command generates tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlx_lm.draft import BlockCosts, DraftOptions, EditStrategy, NgramModTable

from conformance.doors.commands import Body, Group, Record

IMAGE, REFERENCE, MEMORY = "image.bin", "reference.txt", "memory.bin"
REFERENCE_TEXT = "def read_settings(path, strict=True):\n    table = {}\n"
Where = str | Callable[[Record], Any]


@dataclass(frozen=True)
class Case:
    given: str
    where: Where
    value: Any
    also: str = ""  # other options that this one needs
    body: Body | None = None  # of the request, if the case needs one
    then: Body | None = None  # of a second request
    ranks: int = 1
    template: bool = True  # whether the model has a chat template

    def but(self, **changes: Any) -> Case:
        return replace(self, **changes)


Table = dict[str, tuple[Case, ...]]


def at(place: str, also: str = "", **values: Any) -> Table:
    """Options whose values arrive under their own names."""
    return {
        f"--{name.replace('_', '-')}": (Case("" if value is True else str(value), f"{place}.{name}", value, also),)
        for name, value in values.items()
    }


def write_files(folder: Path) -> None:
    """Write the files that the options read."""
    (folder / IMAGE).write_bytes(b"\x07\x08")
    (folder / REFERENCE).write_text(REFERENCE_TEXT)
    NgramModTable(4, vocab_size=1024).save(str(folder / MEMORY))


def says(text: str) -> Where:
    return lambda record: text in record.at("tokenizer.it").decode(record.at("step.prompt"))


def stops_at(text: str) -> Where:
    def where(record: Record) -> bool:
        tokenizer = record.at("tokenizer.it")
        return tokenizer.convert_tokens_to_ids(text) in tokenizer.eos_token_ids

    return where


def prints(text: str) -> Where:
    return lambda record: text in record.printed


def length(where: str) -> Where:
    return lambda record: len(record.at(where) or ())


def pixels(record: Record) -> Any:
    found = record.at("step.input_embeddings")
    return None if found is None else found.tolist()


def split_by_layers(record: Record) -> Any:
    """Whether the model is split by layers, not by tensors."""
    return record.at("sharded_load.pipeline_group") is not None and record.at("sharded_load.tensor_group") is None


def reference(record: Record) -> Any:
    """The text to draft from."""
    found = record.at("step.draft.draft_reference")
    return record.at("tokenizer.it").decode(found) if isinstance(found, list) else found


def saves(record: Record) -> Any:
    return Path(record.at("save.path") or "").name


def each(name: str) -> Where:
    """An option of drafting, of each row or request."""
    return lambda record: [getattr(call["draft"], name) for call in record.calls["step"]]


def shares(record: Record) -> bool:
    """Whether two requests have one memory."""
    first, second = [call["draft"].ngram_mod_table for call in record.calls["step"]][-2:]
    return first is second is not None


AUTO, MOD, OF_MODEL = "--draft-type auto", "--draft-type ngram-mod", "--draft-model a/draft"
DRAFT = "step.draft"
TYPE, N, SIZE, MARGIN, GATE = (
    f"{DRAFT}.{name}"
    for name in ("draft_type", "num_draft_tokens", "ngram_size", "draft_margin", "disable_adaptive_gate")
)
DRAFTING: Table = {
    "--draft-type": tuple(Case(name, TYPE, name) for name in ("edit", "suffix", "ngram-simple", "ngram-mod")),
    "--prompt-lookup-num-tokens": (Case("6", TYPE, "auto"), Case("6", N, 6)),
    **at(DRAFT, AUTO, num_draft_tokens=6, disable_adaptive_gate=True, draft_margin=0.25),
    **at(DRAFT, "--draft-type ngram-simple", ngram_size=5),
    "--draft-memory": (Case(MEMORY, f"{DRAFT}.ngram_mod_table.n", 4, MOD),),
}
SAMPLING = at("step.sampler", temp=0.5, top_p=0.5, top_k=5, min_p=0.5, min_tokens_to_keep=5)
SAMPLING |= at("step.sampler", xtc_probability=0.5, xtc_threshold=0.25)
TRUST = (
    Case("", "load.trust_remote_code", True),
    Case("", "load.tokenizer_config", {"trust_remote_code": True}),
)
COMMON: Table = {
    "--model": (Case("a/model", "step.model.loaded_from", "a/model"),),
    "--trust-remote-code": TRUST,
    **at("load", adapter_path="an/adapter"),
    **at("step", max_tokens=7, prefill_step_size=9),
}
QUANTIZED = at("step", kv_bits=4) | at("step", "--kv-bits 4", kv_group_size=32, quantized_kv_start=9)
PIPELINE = (Case("", split_by_layers, True, ranks=2),)
SYSTEM = (Case("Brief.", says("<|system|>Brief."), True),)
ACTIVATIONS = (Case("", "load.model_config", {"quantize_activations": True}),)
THINKING = (Case('{"thinking":5}', "template.thinking", 5),)
DEFAULT_TEMPLATE = (Case("", "tokenizer.it.chat_template", "default", template=False),)
# For the commands that take a text to draft from.
DRAFT_MODEL: Table = {
    "--draft-model": (Case("a/draft", f"{DRAFT}.draft_model.loaded_from", "a/draft"), Case("a/draft", N, 3)),
    "--num-draft-tokens": (*DRAFTING["--num-draft-tokens"], Case("6", N, 6, OF_MODEL)),
    "--draft-margin": (*DRAFTING["--draft-margin"], Case("0.25", MARGIN, 0.25, OF_MODEL)),
    "--draft-reference": (Case(REFERENCE, reference, REFERENCE_TEXT, AUTO),),
}
# These save what was learned, and the server does it when it ends.
TALKING: Table = {
    **at("seed", seed=3),
    "--system-prompt": SYSTEM,
    "--chat-template-config": THINKING,
    "--show-drafts": (Case("", "mark_drafted.from_draft", True, AUTO),),
    "--draft-memory": (*DRAFTING["--draft-memory"], Case(MEMORY, saves, MEMORY, MOD)),
    **DRAFT_MODEL,
}

GENERATE: Table = {
    "--extra-eos-token": (Case("x", stops_at("x"), True),),
    "--prompt": (Case("Show.", says("<|user|>Show.<|end|>"), True),),
    "--image": (Case(f"{IMAGE} {IMAGE}", pixels, [7, 8, 7, 8]),),
    "--prefill-response": (Case("Yes", says("<|assistant|>Yes"), True),),
    "--ignore-chat-template": (Case("", says("<|user|>"), False),),
    "--use-default-chat-template": DEFAULT_TEMPLATE,
    "--verbose": (Case("False", prints("Generation:"), False),),
    "--json": (Case("", prints('{"text": '), True),),
    "--prompt-cache-file": (Case("a_cache", "step.prompt_cache.file_name", "a_cache"),),
    "--quantize-activations": ACTIVATIONS,
    **at("step", max_kv_size=64),
    **TALKING,
}
CHAT: Table = {"--pipeline": PIPELINE, **at("step.prompt_cache", max_kv_size=64), **TALKING}
BENCHMARK: Table = {
    "--trust-remote-code": TRUST[:1],
    "--prompt-tokens": (Case("33", length("step.prompt"), 33),),
    "--generation-tokens": (Case("7", "step.max_tokens", 7),),
    "--batch-size": (Case("3", length("batch_generate.prompts"), 3),),
    # The first one is a warmup.
    "--num-trials": (Case("2", lambda record: len(record.calls["step"]), 3),),
    "--delay": (Case("3", "sleep.seconds", 3),),
    "--quantize-activations": ACTIVATIONS,
    "--pipeline": PIPELINE,
}
OWN_MOD = {"draft_type": "ngram-mod"}
LINK = {"type": "image_url", "image_url": {"url": "http://localhost/a.png"}}
SEES: Body = {"messages": [{"role": "user", "content": [LINK]}]}
SERVER: Table = {
    "--allowed-origins": (Case("there,here", "answer.origin", "here"),),
    "--allow-internal-image-urls": (Case("", "make_opener.allow_internal", True, body=SEES),),
    "--draft-type": (*DRAFTING["--draft-type"], Case("ngram-mod", shares, True, body=OWN_MOD, then=OWN_MOD)),
    "--log-level": (Case("ERROR", "log.level", 40),),
    "--chat-template": (Case("x", "load.tokenizer_config", {"trust_remote_code": False, "chat_template": "x"}),),
    "--use-default-chat-template": DEFAULT_TEMPLATE,
    "--chat-template-args": THINKING,
    "--decode-concurrency": (Case("11", "batch.completion_batch_size", 11),),
    "--prompt-concurrency": (Case("5", "batch.prefill_batch_size", 5),),
    "--prompt-cache-size": (Case("5", "prompt_cache.it.max_size", 5),),
    "--prompt-cache-checkpoints": (Case("3", "prompt_cache.it.max_checkpoints", 3),),
    "--prompt-cache-bytes": (Case("5MB", "prompt_cache.it.max_bytes", 5_000_000),),
    "--pipeline": PIPELINE,
    **at("http", host="127.0.0.9", port=8099),
    **DRAFT_MODEL,
}

# The other tables hold for every command with an option of that name.
OWN = {"generate": GENERATE, "chat": CHAT, "benchmark": BENCHMARK, "server": SERVER}
DESTINATIONS: dict[str, Table] = {
    command: COMMON | SAMPLING | QUANTIZED | DRAFTING | own for command, own in OWN.items()
}

# The fields of a request, and the options of the server. A request with a margin is served alone.
ALONE = " --draft-margin 0.5"
SIMPLE = f"--draft-type ngram-simple --ngram-size 3 --num-draft-tokens 4{ALONE}"
REQUEST: Table = {
    "draft_type": (
        Case("", TYPE, "suffix", SIMPLE, {"draft_type": "suffix"}),
        Case("", TYPE, "suffix", "", {"draft_type": "suffix"}),
        Case("", TYPE, "none", SIMPLE, {"draft_type": "none"}),
    ),
    "num_draft_tokens": (Case("", N, 6, SIMPLE, {"num_draft_tokens": 6}),),
    "ngram_size": (Case("", SIZE, 5, SIMPLE, {"ngram_size": 5}),),
    "disable_adaptive_gate": (
        Case("", GATE, True, SIMPLE, {"disable_adaptive_gate": True}),
        Case("", GATE, False, f"{SIMPLE} --disable-adaptive-gate", {"disable_adaptive_gate": False}),
    ),
    "draft_margin": (
        Case("", MARGIN, 0.25, SIMPLE, {"draft_margin": 0.25}),
        Case("", MARGIN, 0.25, f"{OF_MODEL}{ALONE}", {"draft_margin": 0.25}),
    ),
    "draft_model": (Case("", f"{DRAFT}.draft_model.loaded_from", "a/draft", AUTO, {"draft_model": "a/draft"}),),
    "prediction": (
        Case("", reference, REFERENCE_TEXT, SIMPLE, {"prediction": {"type": "content", "content": REFERENCE_TEXT}}),
    ),
}
COSTS, MEMORIES, TOKENS, EDIT = BlockCosts((1, 2), (1, 1.5)), NgramModTable(4), [5, 6, 7], EditStrategy()
# The arguments of batch_generate for two prompts, and the place of each in the record.
BATCH: dict[str, tuple[dict[str, Any], Where, Any]] = {
    "draft": ({"draft": DraftOptions("suffix", 6)}, N, 6),
    "draft of each": ({"draft": [EDIT, "suffix"]}, each("draft_strategy"), [EDIT, None]),
    "draft_type": ({"draft_type": "ngram-simple"}, each("draft_type"), ["ngram-simple"] * 2),
    "draft_type of each": ({"draft": ["none", "suffix"]}, each("draft_type"), ["none", "suffix"]),
    "num_draft_tokens": ({"draft_type": "auto", "num_draft_tokens": 6}, N, 6),
    "ngram_size": ({"draft_type": "ngram-simple", "ngram_size": 5}, SIZE, 5),
    "ngram_mod_table": ({**OWN_MOD, "ngram_mod_table": MEMORIES}, each("ngram_mod_table"), [MEMORIES] * 2),
    "draft_reference": (
        {"draft": ["auto", DraftOptions("auto", draft_reference=TOKENS)]},
        each("draft_reference"),
        [None, TOKENS],
    ),
    "disable_adaptive_gate": ({"draft_type": "auto", "disable_adaptive_gate": True}, GATE, True),
    "draft_costs": ({"draft_type": "auto", "draft_costs": COSTS}, "batch.draft_costs", COSTS),
    "draft_group": ({"draft_type": "auto", "draft_group": Group(n=1)}, "batch.draft_group.n", 1),
}
