"""A decode, and all that is seen of it: of a case plain or drafted, and of whatever else gives steps or responses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import count, islice, pairwise
from typing import Any
from unittest.mock import MagicMock

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from conformance import first_line
from conformance.adapters import DRAFT_MODELS, Adapters, Drafts
from conformance.drafters import VOCAB
from conformance.oracle.findings import REFUSAL, WHOLE, broken, not_offered, refused
from conformance.oracle.recorder import Run, differ_at, fed, gaps
from conformance.subjects.decoded import Family, model_of, prompt_of

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
    """Notes what it is shown, and raises another token at each third call. So an extra call or a wrong order changes
    all later tokens."""

    def __init__(self) -> None:
        self.histories: list[list[int]] = []

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        self.histories.append(tokens.tolist())
        calls = len(self.histories)
        return logits if calls % 3 else logits.at[:, 11 * calls % VOCAB].add(12.0)


class Pairs:
    """Behind an even token comes the third one from it, behind an odd one any even token. It guides drafts."""

    def __init__(self) -> None:
        # It has no word on drafts before it has seen the prompt.
        self.last: int | None = None

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        self.last = last = int(tokens[-1].item())
        ids = mx.arange(logits.shape[-1])
        return mx.where(ids % 2 == 0 if last % 2 else ids == (last + 3) % VOCAB, logits, -mx.inf)

    def count_allowed_draft(self, tokens: list[int]) -> int:
        pairs = pairwise([self.last, *tokens])
        right = (a is None or b is None or (b % 2 == 0 if a % 2 else b == (a + 3) % VOCAB) for a, b in pairs)
        return [*right, False].index(False)

    def forced_draft(self, tokens: list[int]) -> list[int]:
        last = [self.last, *tokens][-1]
        return [] if last is None or last % 2 else [(last + 3) % VOCAB]


PROCESSORS: dict[str, Callable[[], list[Any]]] = {
    "penalty": lambda: [penalty],
    "repetition": lambda: make_logits_processors(repetition_penalty=8.0, repetition_context_size=8),
    "penalties": lambda: make_logits_processors(
        {3: 9.0, 9: -9.0}, 1.8, presence_penalty=1.7, frequency_penalty=1.5, frequency_context_size=30
    ),
    "shifting": lambda: [Shifting()],
    "pairs": lambda: [Pairs(), *make_logits_processors(repetition_penalty=1.1)],
}


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
    # The keys of SAMPLERS and PROCESSORS; "" are the defaults of generation.
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
        parts = [self.family.name, self.drafter]
        for one in fields(self)[2:]:
            if (value := getattr(self, one.name)) != one.default:
                parts.append(f"{one.name} {value}" if one.name != "gated" else one.name)
        return "-".join(parts)

    def undrafted(self, n: int | None = None) -> Case:
        """The plain decode of as many tokens, or of n."""
        end = "failure" if self.end == "failure" and n is None else "limit"
        return replace(self, drafter="", end=end, n=self.n if n is None else n, gated=False)

    def plain(self, n: int | None = None) -> Run:
        return _plain(self.undrafted(n))


class Stop(Exception):
    """What a consumer, or a processor, raises."""


def watch(run: Run, case: Case) -> dict[str, Any]:
    """The arguments of generate_step for a case, without max_tokens, that show what its parts are shown."""

    def process(tokens: mx.array, logits: mx.array) -> mx.array:
        run.histories.append((tokens.tolist(), tokens.dtype))
        return logits

    def sample(logprobs: mx.array) -> mx.array:
        token: mx.array = sampler(logprobs)
        run.draws += token.tolist()
        return token

    calls = count(1)

    def fail(_: mx.array, logits: mx.array) -> mx.array:
        if next(calls) == case.n:
            raise Stop
        return logits

    found = {**case.family.options, "prompt_cache": run.cache}
    if case.prefill != 2048:
        found["prefill_step_size"] = case.prefill
    if case.sampler:
        sampler, found["sampler"] = make_sampler(**SAMPLERS[case.sampler]), sample
    if case.processors or case.sampler:
        made = PROCESSORS[case.processors]() if case.processors else []
        # First and last: it sees the raw logits of a row, then the output of all processors.
        found["logits_processors"] = [process, *made, process]
    if case.end == "failure":
        found["logits_processors"] = [fail]
    return found


def decode(run: Run, case: Case, start: Callable[..., Any]) -> Run:
    """Decode n tokens with what ``start`` makes, and end as the case says."""
    end, n = case.end, case.n
    eos = case.plain().tokens[-1:] if end == "end token" else []
    mx.random.seed(SEED)
    with fed(model_of(case.family)) as run.blocks:
        if end in OF_A_STREAM:
            steps = start(tokenizer(*eos), max_tokens=n if end == "stream's limit" else N)
        else:
            steps = start(max_tokens={"limit": n, "failure": N, "close without a limit": -1}.get(end, 2 * N))
        with pytest.raises(Stop) if end == "failure" else nullcontext():
            run.take(steps if end in TO_THE_END else islice(steps, n))
        if end == "throw":
            with pytest.raises(Stop):
                steps.throw(Stop())
        if "close" in end:
            steps.close()
        # What a stream leaves is compared while it is open. A loop that its consumer forgets is closed.
        run.stream = steps if end in OF_A_STREAM else None
        del steps
    run.random = [part.tolist() for part in mx.random.state]
    return run


def compare_tokens(got: Run, right: Run, about: str, near: float) -> None:
    """C4: the tokens, and the log probabilities of those that have some."""
    a, b = got.tokens, right.tokens
    if a != b:
        at = differ_at(a, b)
        broken(f"{about}tokens {a[: at + 1][-4:]} instead of {b[: at + 1][-4:]}, at token {at}")
    given = [i for i, row in enumerate(got.rows) if row is not None]
    for i, off in zip(given, gaps([got.rows[i] for i in given], [right.rows[i] for i in given]), strict=True):
        if off > near:
            broken(f"{about}the log probabilities of token {i} are off by {off:.2g}")


# The ways to end a stream after n tokens, and the reason that its last response names.
OF_A_STREAM = {"stream's limit": "length", "end token": "stop", "stream's close": None}
# Those with which a loop ends by itself.
TO_THE_END = ("limit", "failure", "stream's limit", "end token")


def tokenizer(*eos: int) -> Any:
    return MagicMock(spec=TokenizerWrapper, eos_token_ids=set(eos), detokenizer=MagicMock(last_segment=""))


def decode_plain(case: Case) -> Run:
    run = Run(case.prompt, case.family.caches())
    options = watch(run, case) | {"prompt_progress_callback": lambda *done: run.progress.append(done)}
    decode(run, case, partial(generate_step, mx.array(run.prompt), model_of(case.family), **options))
    mx.eval(run.rows)
    return run


_plain = cache(decode_plain)


def drafted(case: Case, adapter: Adapters) -> Run:
    """A drafted decode. Where the tree is the series, with its statistics and with the gate."""
    run, model = Run(case.prompt, case.family.caches()), model_of(case.family)
    options = watch(run, case)
    if lacking := sorted(set(options) - adapter.options(case.drafter)):
        not_offered(f"the adapter's decode takes no {', '.join(lacking)}")
    if adapter.is_series:
        options |= series_options(case) | {"prompt_progress_callback": lambda *done: run.progress.append(done)}
        run.stats = options.get("stats")
    # Longer than what is decoded, so that there are drafts where it ends.
    run.drafts = Drafts(case.drafter, case.plain(N).text)
    # A draft model is made before anything is drawn.
    run.drafts.draft_model(model)
    door: Callable[..., Any] = adapter.stream if case.end in OF_A_STREAM else adapter.decode
    try:
        return decode(run, case, lambda *more, **ends: door(model, run.prompt, run.drafts, *more, **options, **ends))
    except Exception as error:
        if isinstance(error, REFUSAL) and not run.tokens:
            refused(error)
        broken(f"after {len(run.tokens)} tokens it raises {first_line(error)}")


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


def second_turn(case: Case, caches: list[Any], adapter: Adapters | None = None, drafts: Drafts | None = None) -> Run:
    """Six tokens after a prompt on these caches, plain or with the drafts of a first turn and what they left."""
    run, model, options = Run(case.next_prompt, caches), model_of(case.family), case.family.options
    mx.random.seed(SEED)
    if adapter is None or drafts is None:
        return run.loop(generate_step, model, 6, **options)
    return run.take(adapter.decode(model, run.prompt, drafts, max_tokens=6, prompt_cache=caches, **options))


@cache
def plain_turn(case: Case) -> Run:
    """The turn that follows a plain decode, on a copy of the caches that it leaves."""
    return second_turn(case, deepcopy(case.plain().cache))
