"""The cases of test_forwarding.py: the place where each option of each command has an effect.

A case has the value that a user types, a place in the record of ``testing.commands.recorders``, and the value that must
be there. A place below ``step`` is checked for every way in which a command generates tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlx_lm.draft import BlockCosts, DraftOptions, EditStrategy, NgramModStrategy, NgramModTable
from mlx_lm.tokenizer_utils import TokenizerWrapper

from conformance.testing.commands.recorders import Body, Group, Record

IMAGE, REFERENCE, MEMORY = "image.bin", "reference.txt", "memory.bin"
REFERENCE_TEXT = "def read_settings(path, strict=True):\n    table = {}\n"
LEARNED = list(range(100, 200))


@dataclass(frozen=True)
class Case:
    given: str
    where: str | Callable[[Record], Any]
    value: Any
    also: str = ""  # other options that this one needs
    body: Body | None = None  # of the request, if the case needs one
    then: Body | None = None  # of a second request
    ranks: int = 1
    template: bool = True  # whether the model has a chat template

    def but(self, **changes: Any) -> Case:
        return replace(self, **changes)


def learned() -> NgramModTable:
    table = NgramModTable(4, vocab_size=1024)
    NgramModStrategy(table, 1024).observe(LEARNED)
    return table


def write_files(folder: Path) -> None:
    """Write the files that the options read."""
    (folder / IMAGE).write_bytes(b"\x07\x08")
    (folder / REFERENCE).write_text(REFERENCE_TEXT)
    learned().save(folder / MEMORY)


def says(text: str) -> Callable[[Record], bool]:
    def where(record: Record) -> bool:
        return text in record.at("tokenizer.it").decode(record.at("step.prompt").tolist())

    return where


def stops_at(text: str) -> Callable[[Record], bool]:
    def where(record: Record) -> bool:
        tokenizer = record.at("tokenizer.it")
        return tokenizer.convert_tokens_to_ids(text) in tokenizer.eos_token_ids

    return where


def prints(text: str) -> Callable[[Record], bool]:
    return lambda record: text in record.printed


def answers(text: str) -> Callable[[Record], bool]:
    return lambda record: text in record.at("answer.head")


def times(name: str) -> Callable[[Record], int]:
    return lambda record: len(record.calls[name])


def pixels(record: Record) -> Any:
    found = record.at("step.input_embeddings")
    return None if found is None else found.tolist()


def split_by_layers(record: Record) -> Any:
    """Whether the model is split by layers, not by tensors."""
    return record.at("sharded_load.pipeline_group") is not None and record.at("sharded_load.tensor_group") is None


def ngram_size(record: Record) -> Any:
    """The number of tokens that the strategy looks up. Later, shorter matches continue differently."""
    strategy, end = record.at("step.strategy"), list(range(1, 10))
    # A memory is asked for what the text itself does not have.
    other = NgramModStrategy(strategy._table) if isinstance(strategy, NgramModStrategy) else strategy
    for n in range(9, 1, -1):
        other.observe([500 + n, *end[-n:], 100 + n])
    strategy.observe(end)
    return strategy.propose(1)[0] - 100


def drafts_from_the_start(record: Record) -> Any:
    """The draft after the first tokens of the reference."""
    tokens = record.at("tokenizer.it").encode(REFERENCE_TEXT, add_special_tokens=False)
    strategy = record.at("step.strategy")
    strategy.observe([1000, *tokens[:6]])
    return list(strategy.propose(4)) == tokens[6:10]


def remembers(record: Record) -> Any:
    """The draft from the memory of an earlier program."""
    strategy = record.at("step.strategy")
    strategy.observe(LEARNED[:6])
    return list(strategy.propose(3)) == LEARNED[6:9]


def gated(record: Record) -> bool:
    return record.at("step.costs") is not None


def saves(record: Record) -> Any:
    return Path(record.at("save.path") or "").name


def shares(record: Record) -> Any:
    """Whether the second of two requests drafts from the first."""
    first, second = (call.get("strategy") for call in record.calls["step"][-2:])
    if first is None or second is None:
        return False
    first.observe(LEARNED)
    second.observe(LEARNED[:17])
    return bool(second.propose(1))


AUTO, MOD = "--draft-type auto", "--draft-type ngram-mod"
OWN_MOD = {"draft_type": "ngram-mod"}
STRATEGY = "step.strategy.__class__.__name__"
Table = dict[str, tuple[Case, ...]]
DRAFTING: Table = {
    "--draft-type": (
        Case("edit", STRATEGY, "EditStrategy"),
        Case("suffix", STRATEGY, "SuffixStrategy"),
        Case("ngram-simple", STRATEGY, "NgramSimpleStrategy"),
        Case("ngram-mod", STRATEGY, "NgramModStrategy"),
    ),
    "--prompt-lookup-num-tokens": (Case("6", STRATEGY, "EditStrategy"), Case("6", "step.num_draft_tokens", 6)),
    "--num-draft-tokens": (Case("6", "step.num_draft_tokens", 6, AUTO),),
    "--ngram-size": (Case("5", ngram_size, 5, "--draft-type ngram-simple"),),
    "--disable-adaptive-gate": (Case("", "step.costs", None, AUTO),),
    "--draft-margin": (Case("0.25", "step.margin", 0.25, AUTO),),
    "--draft-memory": (Case(MEMORY, remembers, True, MOD),),
}
SAMPLING: Table = {
    "--temp": (Case("0.5", "step.sampler.temp", 0.5),),
    "--top-p": (Case("0.5", "step.sampler.top_p", 0.5),),
    "--top-k": (Case("5", "step.sampler.top_k", 5),),
    "--min-p": (Case("0.5", "step.sampler.min_p", 0.5),),
    "--min-tokens-to-keep": (Case("5", "step.sampler.min_tokens_to_keep", 5),),
    "--xtc-probability": (Case("0.5", "step.sampler.xtc_probability", 0.5),),
    "--xtc-threshold": (Case("0.25", "step.sampler.xtc_threshold", 0.25),),
}
TRUST = (
    Case("", "load.trust_remote_code", True),
    Case("", "load.tokenizer_config", {"trust_remote_code": True}),
)
COMMON: Table = {
    "--model": (Case("a/model", "step.model.loaded_from", "a/model"),),
    "--adapter-path": (Case("an/adapter", "load.adapter_path", "an/adapter"),),
    "--trust-remote-code": TRUST,
    "--max-tokens": (Case("7", "step.max_tokens", 7),),
    "--prefill-step-size": (Case("9", "step.prefill_step_size", 9),),
}
QUANTIZED: Table = {
    "--kv-bits": (Case("4", "step.kv_bits", 4),),
    "--kv-group-size": (Case("32", "step.kv_group_size", 32, "--kv-bits 4"),),
    "--quantized-kv-start": (Case("9", "step.quantized_kv_start", 9, "--kv-bits 4"),),
}
PIPELINE = (Case("", split_by_layers, True, ranks=2),)
SYSTEM = (Case("Brief.", says("<|system|>Brief."), True),)
ACTIVATIONS = (Case("", "load.model_config", {"quantize_activations": True}),)

# The server saves what it has learned, and the benchmark nothing.
KEPT = (*DRAFTING["--draft-memory"], Case(MEMORY, saves, MEMORY, MOD))
SHOWN = (Case("", "mark_drafted.from_draft", True, AUTO),)
# For the commands that take a text to draft from.
DRAFT_MODEL: Table = {
    "--draft-model": (
        Case("a/draft", "step.strategy.model.loaded_from", "a/draft"),
        Case("a/draft", "step.num_draft_tokens", 3),
    ),
    "--num-draft-tokens": (
        *DRAFTING["--num-draft-tokens"],
        Case("6", "step.num_draft_tokens", 6, "--draft-model a/draft"),
    ),
    "--draft-margin": (*DRAFTING["--draft-margin"], Case("0.25", "step.margin", 0.25, "--draft-model a/draft")),
    "--draft-reference": (Case(REFERENCE, drafts_from_the_start, True, AUTO),),
}

GENERATE: Table = {
    "--extra-eos-token": (Case("x", stops_at("x"), True),),
    "--system-prompt": SYSTEM,
    "--prompt": (Case("Show.", says("<|user|>Show.<|end|>"), True),),
    "--image": (Case(f"{IMAGE} {IMAGE}", pixels, [7, 8, 7, 8]),),
    "--prefill-response": (Case("Yes", says("<|assistant|>Yes"), True),),
    "--seed": (Case("3", "seed.seed", 3),),
    "--ignore-chat-template": (Case("", says("<|user|>"), False),),
    "--use-default-chat-template": (Case("", "tokenizer.it.chat_template", "default", template=False),),
    "--chat-template-config": (Case('{"thinking":5}', "template.thinking", 5),),
    "--verbose": (Case("False", prints("Generation:"), False),),
    "--show-drafts": SHOWN,
    "--draft-memory": KEPT,
    "--json": (Case("", prints('{"text": '), True),),
    "--max-kv-size": (Case("64", "step.max_kv_size", 64),),
    "--prompt-cache-file": (Case("a_cache", "step.prompt_cache.file_name", "a_cache"),),
    "--quantize-activations": ACTIVATIONS,
    **DRAFT_MODEL,
}
CHAT: Table = {
    "--seed": (Case("3", "seed.seed", 3),),
    "--max-kv-size": (Case("64", "step.prompt_cache.max_kv_size", 64),),
    "--system-prompt": SYSTEM,
    "--chat-template-config": (Case('{"thinking":5}', "template.thinking", 5),),
    "--pipeline": PIPELINE,
    "--show-drafts": SHOWN,
    "--draft-memory": KEPT,
    **DRAFT_MODEL,
}
BENCHMARK: Table = {
    "--trust-remote-code": TRUST[:1],
    "--prompt-tokens": (Case("33", "step.prompt.size", 33),),
    "--generation-tokens": (Case("7", "step.max_tokens", 7),),
    "--batch-size": (Case("3", lambda record: len(record.at("batch_generate.prompts") or ()), 3),),
    # The first one is a warmup.
    "--num-trials": (Case("2", times("step"), 3),),
    "--delay": (Case("3", "sleep.seconds", 3),),
    "--quantize-activations": ACTIVATIONS,
    "--pipeline": PIPELINE,
}
SERVER: Table = {
    "--host": (Case("127.0.0.9", "http.address", "127.0.0.9"),),
    "--port": (Case("8099", "http.port", 8099),),
    "--allowed-origins": (Case("there,here", answers("Access-Control-Allow-Origin: here"), True),),
    "--draft-type": (*DRAFTING["--draft-type"], Case("ngram-mod", shares, True, body=OWN_MOD, then=OWN_MOD)),
    "--log-level": (Case("ERROR", "log.level", 40),),
    "--chat-template": (Case("x", "load.tokenizer_config", {"trust_remote_code": False, "chat_template": "x"}),),
    "--use-default-chat-template": (Case("", "tokenizer.it.chat_template", "default", template=False),),
    "--chat-template-args": (Case('{"thinking":5}', "template.thinking", 5),),
    "--decode-concurrency": (Case("11", "batch.completion_batch_size", 11),),
    "--prompt-concurrency": (Case("5", "batch.prefill_batch_size", 5),),
    "--prompt-cache-size": (Case("5", "prompt_cache.it.max_size", 5),),
    "--prompt-cache-bytes": (
        Case("5MB", "prompt_cache.it.max_bytes", 5_000_000),
        Case("5MB", "prompt_cache.it.max_bytes", 5_000_000, AUTO),
        Case("5MB", "prompt_cache.it.max_bytes", 5_000_000, body={"seed": 1}),
    ),
    "--pipeline": PIPELINE,
    **DRAFT_MODEL,
}

# The other tables hold for every command with an option of that name.
OWN = {"generate": GENERATE, "chat": CHAT, "benchmark": BENCHMARK, "server": SERVER}
DESTINATIONS: dict[str, Table] = {
    command: COMMON | SAMPLING | QUANTIZED | DRAFTING | own for command, own in OWN.items()
}

# The fields of a request, and the options of the server.
# A request with a margin is served alone.
MARGIN = " --draft-margin 0.5"
SIMPLE = f"--draft-type ngram-simple --ngram-size 3 --num-draft-tokens 4{MARGIN}"
REQUEST: Table = {
    "draft_type": (
        Case("", STRATEGY, "SuffixStrategy", SIMPLE, {"draft_type": "suffix"}),
        Case("", STRATEGY, "SuffixStrategy", "", {"draft_type": "suffix"}),
        Case("", STRATEGY, "NoneType", SIMPLE, {"draft_type": "none"}),
    ),
    "num_draft_tokens": (Case("", "step.num_draft_tokens", 6, SIMPLE, {"num_draft_tokens": 6}),),
    "ngram_size": (Case("", ngram_size, 5, SIMPLE, {"ngram_size": 5}),),
    "disable_adaptive_gate": (
        Case("", "step.costs", None, SIMPLE, {"disable_adaptive_gate": True}),
        Case("", gated, True, f"{SIMPLE} --disable-adaptive-gate", {"disable_adaptive_gate": False}),
    ),
    "draft_margin": (Case("", "step.margin", 0.25, SIMPLE, {"draft_margin": 0.25}),),
    "prediction": (
        Case("", drafts_from_the_start, True, SIMPLE, {"prediction": {"type": "content", "content": REFERENCE_TEXT}}),
    ),
}


def strategies(record: Record) -> list[str]:
    return [type(call.get("strategy")).__name__ for call in record.calls["step"]]


COSTS = BlockCosts((1, 2), (1, 1.5))
Given = dict[str, Any]
# The arguments of batch_generate for two prompts, and the place of each in the record.
BATCH: dict[str, tuple[Callable[[TokenizerWrapper], Given], str | Callable[[Record], Any], Any]] = {
    "draft": (lambda _: {"draft": DraftOptions("suffix", 6)}, "step.num_draft_tokens", 6),
    "draft of each": (
        lambda _: {"draft": [EditStrategy(), "suffix"]},
        strategies,
        ["EditStrategy", "SuffixStrategy"],
    ),
    "draft_type": (lambda _: {"draft_type": "ngram-simple"}, strategies, ["NgramSimpleStrategy"] * 2),
    "draft_type of each": (
        lambda _: {"draft_type": ["none", "suffix"]},
        strategies,
        ["NoneType", "SuffixStrategy"],
    ),
    "num_draft_tokens": (lambda _: {"draft_type": "auto", "num_draft_tokens": 6}, "step.num_draft_tokens", 6),
    "ngram_size": (lambda _: {"draft_type": "ngram-simple", "ngram_size": 5}, ngram_size, 5),
    "ngram_mod_table": (lambda _: {"draft_type": "ngram-mod", "ngram_mod_table": learned()}, remembers, True),
    "draft_reference": (
        lambda tokenizer: {
            "draft_type": "auto",
            "draft_reference": [None, tokenizer.encode(REFERENCE_TEXT, add_special_tokens=False)],
        },
        drafts_from_the_start,
        True,
    ),
    "disable_adaptive_gate": (lambda _: {"draft_type": "auto", "disable_adaptive_gate": True}, "step.costs", None),
    "draft_costs": (lambda _: {"draft_type": "auto", "draft_costs": COSTS}, "step.costs", COSTS),
    "draft_group": (lambda _: {"draft_type": "auto", "draft_group": Group(1)}, "batch.draft_group._size", 1),
}
