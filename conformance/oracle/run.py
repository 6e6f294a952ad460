"""One decode, plain or drafted: all that is seen of it, and where it differs from plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from itertools import count, islice
from typing import Any
from unittest.mock import MagicMock

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from conformance import first_line
from conformance.adapters import DRAFT_MODELS, Adapters, Drafts
from conformance.oracle.findings import REFUSAL, WHOLE, broken, not_offered, refused
from conformance.oracle.recorder import fed
from conformance.subjects.decoded import VOCAB, Family, model_of, prompt_of

# The tokens of a whole answer, and the seed of every decode.
N, SEED = 18, 7
SAMPLERS: dict[str, dict[str, float]] = {
    "watched": {},
    "temperature": {"temp": 0.8},
    "top_p": {"temp": 1.0, "top_p": 0.8},
    "min_p": {"temp": 1.0, "min_p": 0.1, "min_tokens_to_keep": 2},
    "top_k": {"temp": 1.0, "top_k": 5},
    "xtc": {"temp": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.02},
}


def penalty(tokens: mx.array, logits: mx.array) -> mx.array:
    """Makes what came up lately less likely, by so much that the text is another one."""
    counts = (tokens[-8:][:, None] == mx.arange(logits.shape[-1])).sum(axis=0)
    lowered: mx.array = logits - 6.0 * counts
    return lowered


class Shifting:
    """Raises another token at each third call. An extra call or a wrong order changes all later tokens."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        self.calls += 1
        return logits if self.calls % 3 else logits.at[:, 11 * self.calls % VOCAB].add(12.0)


class Remembering:
    """Bans the tokens that followed the last token before. Its state depends on the whole history that it sees."""

    def __init__(self) -> None:
        self.followers: dict[int, set[int]] = {}

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        history = tokens.tolist()
        if len(history) > 1:
            self.followers.setdefault(history[-2], set()).add(history[-1])
        for token in self.followers.get(history[-1], ()):
            logits[:, token] = -mx.inf
        return logits


class Pairs:
    """Behind an even token comes the next one, behind an odd one any even token: it says what may and has to follow."""

    def __init__(self) -> None:
        # It has no word on drafts before it has seen the prompt.
        self.last: int | None = None

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        self.last = last = int(tokens[-1].item())
        ids = mx.arange(logits.shape[-1])
        return mx.where(ids == last + 1 if last % 2 == 0 else ids % 2 == 0, logits, -mx.inf)

    def count_allowed_draft(self, tokens: list[int]) -> int:
        before = [self.last, *tokens]
        right = [a is None or (b == a + 1 if a % 2 == 0 else b % 2 == 0) for a, b in zip(before, tokens, strict=False)]
        return [*right, False].index(False)

    def forced_draft(self, tokens: list[int]) -> list[int]:
        last = [self.last, *tokens][-1]
        return [] if last is None or last % 2 else [last + 1]


PROCESSORS: dict[str, Callable[[], list[Any]]] = {
    "penalty": lambda: [penalty],
    "repetition": lambda: make_logits_processors(repetition_penalty=8.0, repetition_context_size=8),
    "penalties": lambda: make_logits_processors(
        {3: 9.0, 9: -9.0}, 1.8, presence_penalty=1.7, frequency_penalty=1.5, frequency_context_size=30
    ),
    "shifting": lambda: [Shifting()],
    "remembering": lambda: [Remembering(), *make_logits_processors(repetition_penalty=1.1)],
}
# What keeps a text to a form, and says so to drafters.
FORMS: dict[str, Callable[[], list[Any]]] = {"pairs": lambda: [Pairs()]}


@dataclass(frozen=True)
class Case:
    """What is decoded, with what, and how it ends."""

    family: Family
    # "" is plain decoding.
    drafter: str = ""
    # The length of the prompt, and the number of tokens after which it ends.
    length: int = 21
    end: str = "limit"
    n: int = N
    # The keys of SAMPLERS, and of PROCESSORS or FORMS; "" are the defaults of generation.
    sampler: str = ""
    processors: str = ""
    prefill: int = 2048
    # Whether drafts that do not pay are left out.
    gated: bool = False

    @property
    def prompt(self) -> list[int]:
        return prompt_of(self.length)

    @property
    def next_prompt(self) -> list[int]:
        """That of the turn that follows, of one token or two."""
        return [7, 9][self.n % 2 :]

    def __str__(self) -> str:
        """What is not as usual, as the id of a test has it."""
        told = [self.family.name, self.drafter]
        for one in fields(self)[2:]:
            if (value := getattr(self, one.name)) != one.default:
                told.append(f"{one.name} {value}" if one.name != "gated" else one.name)
        return "-".join(told)

    def plain(self, n: int | None = None) -> Run:
        """The plain decode of as many tokens, or of n."""
        end = "failure" if self.end == "failure" and n is None else "limit"
        return _plain(replace(self, drafter="", end=end, n=self.n if n is None else n, gated=False))


class Stop(Exception):
    """What a consumer, or a processor, raises."""


@dataclass(eq=False)
class Run:
    """A decode and what was seen of it."""

    case: Case
    caches: list[Any]
    tokens: list[int] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    flags: list[bool] = field(default_factory=list)
    # What a processor is shown, twice for each token: before and after the other processors.
    histories: list[tuple[list[int], Any]] = field(default_factory=list)
    draws: list[int] = field(default_factory=list)
    # What is told of the prompt.
    progress: list[tuple[int, ...]] = field(default_factory=list)
    # The lengths of the forward passes of the model.
    blocks: list[int] = field(default_factory=list)
    # The state of random numbers at the end.
    random: list[Any] = field(default_factory=list)
    stats: Any = None
    drafts: Drafts | None = None
    # A stream that is still open at its last response, and why it ended.
    open: Any = None
    reason: str | None = None

    @cached_property
    def sampler(self) -> Callable[[mx.array], mx.array]:
        made: Callable[[mx.array], mx.array] = make_sampler(**SAMPLERS.get(self.case.sampler, {}))
        return made

    def process(self, tokens: mx.array, logits: mx.array) -> mx.array:
        self.histories.append((tokens.tolist(), tokens.dtype))
        return logits

    def sample(self, logprobs: mx.array) -> mx.array:
        token = self.sampler(logprobs)
        self.draws += token.tolist()
        return token

    def options(self) -> dict[str, Any]:
        """The arguments of generate_step, without max_tokens."""
        case, found = self.case, dict[str, Any](self.case.family.options)
        found["prompt_cache"] = self.caches
        if case.prefill != 2048:
            found["prefill_step_size"] = case.prefill
        if case.sampler:
            found["sampler"] = self.sample
        if case.processors or case.sampler:
            made = (PROCESSORS | FORMS)[case.processors]() if case.processors else []
            # First and last: it sees the raw logits of a row, then the output of all processors.
            found["logits_processors"] = [self.process, *made, self.process]
        if case.end == "failure":
            calls = count(1)

            def fail(_: mx.array, logits: mx.array) -> mx.array:
                if next(calls) == case.n:
                    raise Stop
                return logits

            found["logits_processors"] = [fail]
        return found

    def take(self, steps: Iterable[Any]) -> None:
        for token, logprobs, *drafted in steps:
            self.tokens.append(int(token))
            self.rows.append(logprobs)
            self.flags.append(bool(drafted and drafted[0]))

    def take_responses(self, responses: Iterable[Any]) -> None:
        """Until the response with a finish reason, while the generator is open."""
        self.open = responses
        for response in responses:
            self.take([(response.token, response.logprobs, response.from_draft)])
            self.stats, self.reason = getattr(response, "draft", None) or self.stats, response.finish_reason
            if self.reason is not None:
                break

    def told(self, *progress: int) -> None:
        self.progress.append(progress)


def decode_plain(case: Case) -> Run:
    run, prompt = Run(case, case.family.caches()), mx.array(case.prompt)
    options = run.options() | {"max_tokens": case.n, "prompt_progress_callback": run.told}
    mx.random.seed(SEED)
    with suppress(Stop):
        run.take(generate_step(prompt, model_of(case.family), **options))
    run.random = [part.tolist() for part in mx.random.state]
    mx.eval(run.rows)
    return run


_plain = cache(decode_plain)


# The ways to end a stream after n tokens, and the reason that its last response names.
OF_A_STREAM = {"stream's limit": "length", "end token": "stop", "stream's close": None}


def tokenizer(*eos: int) -> Any:
    return MagicMock(spec=TokenizerWrapper, eos_token_ids=set(eos), detokenizer=MagicMock(last_segment=""))


def decode(run: Run, start: Callable[..., Any]) -> None:
    """Decode n tokens with what ``start`` makes, and end as the case says."""
    end, n = run.case.end, run.case.n
    if end in OF_A_STREAM:
        ends = run.case.plain().tokens[-1:] if end == "end token" else []
        steps = start(tokenizer(*ends), max_tokens=n if end == "stream's limit" else N)
        run.take_responses(islice(steps, n) if end == "stream's close" else steps)
    else:
        steps = start(max_tokens={"limit": n, "failure": N, "close without a limit": -1}.get(end, 2 * N))
        with pytest.raises(Stop) if end == "failure" else nullcontext():
            run.take(steps if end in ("limit", "failure") else islice(steps, n))
    if end == "throw":
        with pytest.raises(Stop):
            steps.throw(Stop())
    if "close" in end:
        steps.close()


def drafted(case: Case, adapter: Adapters, strict: bool = False) -> Run:
    """A drafted decode. Where the tree is the series (``strict``), with its statistics and with the gate."""
    run = Run(case, case.family.caches())
    options = run.options()
    if lacking := sorted(set(options) - adapter.options(case.drafter)):
        not_offered(f"the adapter's decode takes no {', '.join(lacking)}")
    if strict:
        options |= series_options(case) | {"prompt_progress_callback": run.told}
        run.stats = options.get("stats")
    # Longer than what is decoded, so that there are drafts where it ends.
    run.drafts = drafts = Drafts(case.drafter, [*case.prompt, *case.plain(N).tokens])
    model = model_of(case.family)
    door: Callable[..., Any] = adapter.stream if case.end in OF_A_STREAM else adapter.decode
    # A draft model is made before anything is drawn.
    drafts.draft_model(model)
    mx.random.seed(SEED)

    def start(*more: Any, **ends: Any) -> Any:
        return door(model, case.prompt, drafts, *more, **options, **ends)

    try:
        with fed(model) as run.blocks:
            decode(run, start)
    except Exception as error:
        if isinstance(error, REFUSAL) and not run.tokens:
            refused(error)
        broken(f"after {len(run.tokens)} tokens it raises {first_line(error)}")
    run.random = [part.tolist() for part in mx.random.state]
    return run


def series_options(case: Case) -> dict[str, Any]:
    """What only the loop of the series takes."""
    from mlx_lm import draft

    found: dict[str, Any] = {} if case.end in OF_A_STREAM else {"stats": draft.DraftStats()}
    # The core of the series has no gate.
    if case.gated and WHOLE:
        found["disable_adaptive_gate"] = False
        if case.drafter not in DRAFT_MODELS:
            # Fixed costs: nothing here may depend on a clock.
            found["draft_costs"] = draft.BlockCosts((1, 2, 16), (1.0, 1.2, 3.0))
    return found


def second_turn(case: Case, caches: list[Any], adapter: Adapters | None, drafts: Drafts | None) -> Run:
    """Six tokens after a prompt on these caches, plain or with the drafts of a first turn and what they left."""
    prompt, options = case.next_prompt, {**case.family.options, "prompt_cache": caches, "max_tokens": 6}
    run, model = Run(case, caches), model_of(case.family)
    mx.random.seed(SEED)
    if adapter is None or drafts is None:
        run.take(generate_step(mx.array(prompt), model, **options))
    else:
        run.take(adapter.decode(model, prompt, drafts, **options))
    return run


@cache
def right_turn(case: Case) -> Run:
    """The second turn on a copy of the caches that plain decoding leaves."""
    return second_turn(case, deepcopy(case.plain().caches), None, None)
