"""Faults of drafts in a batch, to plant in the process of a server, and helpers that make them visible."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import count
from typing import Any

from mlx_lm import server
from mlx_lm.draft import BlockCosts, batch_planner, options, verify
from mlx_lm.draft.batch import DraftedBlock
from mlx_lm.draft.batch_planner import BatchPlanner
from mlx_lm.draft.loop import Decoder
from mlx_lm.draft.options import DraftOptions
from mlx_lm.generate import GenerationBatch
from mlx_lm.models import llama
from mlx_lm.models.cache import TokenBuffer

from conformance.subjects.families import mutant

# The package also has a function of that name.
GENERATE: Any = import_module("mlx_lm.generate")
# A device limited by memory bandwidth. With fixed costs, decisions depend only on the tokens.
CHEAP = BlockCosts((1, 2, 64), (1, 1.02, 1.3))
STOOD_STILL = "a stream stood still for passes, steps of prompts:"


def keep_a_rejected_token() -> None:
    alone, together = verify.drop_tokens, GENERATE.drop_tokens
    verify.drop_tokens = lambda cache, n: alone(cache, max(n - 1, 0))
    GENERATE.drop_tokens = lambda cache, n: together(cache, [max(each - 1, 0) for each in n])


def leave_the_last_block() -> None:
    """Drafted tokens after the last token of an answer stay in the cache."""
    end = "verifier.accept({})\n        verifier.close()"
    Decoder.generate = mutant(Decoder.generate, end.format("self.n_accepted"), end.format("verifier._n_draft"))
    kept, too_many = (
        "block.n_draft - n for n in n_accepted",
        "0 if row and row[-1].finish_reason else block.n_draft - n",
    )
    rows = f"{too_many} for n, row in zip(n_accepted, accepted)"
    GenerationBatch._finish_block = mutant(GenerationBatch._finish_block, kept, rows)


def send_what_follows_a_stop_word() -> None:
    """All accepted tokens of a block are sent, also those after a stop word."""
    accept = GenerationBatch._accept

    def accept_late(self: Any, idx: int, drawn: Any, *args: Any) -> Any:
        row = accept(self, idx, drawn, *args)
        if row and row[-1].finish_reason == "stop":
            last, behind = row[-1], drawn[len(row) :]
            row += [replace(last, token=token, logprobs=p) for token, p in behind]
            row[:-1] = [replace(answer, finish_reason=None) for answer in row[:-1]]
        return row

    GenerationBatch._accept = accept_late


def forget_parts_of_stop_words() -> None:
    """A stop word that spans two blocks is not found."""
    known = "responses, uid = [], self.uids[idx]"
    forget = f"{known}\n    self._matchers[idx] = self.stop_sequences[idx].matcher()"
    GenerationBatch._accept = mutant(GenerationBatch._accept, known, forget)


def show_no_prompt() -> None:
    """Penalties see only the answer, not the prompt."""
    GENERATE.TokenBuffer = lambda *_: TokenBuffer()


def show_no_accepted_tokens() -> None:
    """Penalties do not see drafted tokens."""
    shown, none = "self._tokens[i, n : n + 1]", "self._tokens[i, n : n + (n == 0)]"
    DraftedBlock._draw_after = mutant(DraftedBlock._draw_after, shown, none)


def lose_a_token_of_a_block() -> None:
    """A response drops one token of a block, so its text may lose a character."""
    fewer = "return [r for n, r in enumerate(responses) if n != 1 or r.finish_reason]"
    GenerationBatch._accept = mutant(GenerationBatch._accept, "return responses", fewer)


def swap_the_statistics() -> None:
    """Each row gets the number of accepted tokens of its neighbour."""
    accept = BatchPlanner.accept

    def accept_and_swap(self: Any, uids: list[int], n_accepted: list[int]) -> None:
        accept(self, uids, n_accepted)
        for uid, own, other in zip(uids, n_accepted, n_accepted[1:] + n_accepted[:1], strict=True):
            if uid in self.rows:
                self.rows[uid].stats.accepted += other - own

    BatchPlanner.accept = accept_and_swap


def price_blocks() -> None:
    """Not a fault: the costs of blocks come from a table, not from the machine."""
    batch_planner.block_costs = options.block_costs = lambda _: CHEAP


def never_draft_again() -> None:
    """Drafting stops for good once more than two requests are decoded together."""
    price_blocks()
    plan = BatchPlanner.plan

    def plan_for_few(self: Any, uids: list[int], *args: Any) -> Any:
        if len(uids) > 2:
            self.give_up("there were many")
        return plan(self, uids, *args)

    BatchPlanner.plan = plan_for_few


def draft_one_by_one() -> None:
    """A drafted request is served alone, from start to end."""
    batchable = server.ResponseGenerator._is_batchable
    server.ResponseGenerator._is_batchable = lambda self, args: not args.draft and batchable(self, args)


def count_passes() -> None:
    """Not a fault: print how long a stream of the batch gets no token, each time that is longer than before."""
    passes, worst, in_prompt = [0, 0], [0, 0], [False]
    call, prompt, step = llama.Model.__call__, GENERATE.PromptProcessingBatch.prompt, server.BatchGenerator.next

    def call_and_count(self: Any, *args: Any, **kwargs: Any) -> Any:
        # The call that finds the size of the vocabulary is never computed.
        passes[in_prompt[0]] += sys._getframe(1).f_code.co_name != "vocab_size_of"
        return call(self, *args, **kwargs)

    def prompt_apart(self: Any, tokens: Any) -> None:
        in_prompt[0] = True
        prompt(self, tokens)
        in_prompt[0] = False

    def step_and_look(self: Any) -> Any:
        prompts, answers = step(self)
        seen = self.__dict__.setdefault("seen", {})
        for uid in {answer.uid for answer in answers}:
            still = [now - then for now, then in zip(passes, seen.get(uid, passes), strict=True)]
            if any(a > b for a, b in zip(still, worst, strict=True)):
                worst[:] = map(max, still, worst)
                print(STOOD_STILL, *worst, file=sys.stderr, flush=True)
            seen[uid] = list(passes)
        return prompts, answers

    llama.Model.__call__ = call_and_count
    GENERATE.PromptProcessingBatch.prompt = prompt_apart
    server.BatchGenerator.next = step_and_look


def answer_in_bulk() -> None:
    """The batch returns responses only every eight passes."""
    count_passes()
    step = GenerationBatch.next
    GenerationBatch.next = lambda self: [answer for _ in range(8) for answer in step(self)]


# The part that fails, and the field of a request that asks for this.
FAILING: dict[str, dict[str, Any]] = {
    "strategy": {"draft_type": "suffix", "num_draft_tokens": 13},
    "sampler": {"temperature": 0.125},
    "processor": {"repetition_penalty": 1.125},
    "format": {"logprobs": True, "top_logprobs": 7},
    "pass": {"presence_penalty": 0.125},
}


def _third_call_raises(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    calls = count(1)

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 3:
            raise ZeroDivisionError(f"the {what} raises")
        return function(*args, **kwargs)

    return call


def raise_for_some() -> None:
    """Not a fault: a part of a request raises if the request is one of ``FAILING``."""
    strategy, sampler = DraftOptions.make_strategy, server.make_sampler
    processors, tops, call = server.make_logits_processors, server._format_top_logprobs, llama.Model.__call__

    def make_strategy(self: Any, *args: Any) -> Any:
        made = strategy(self, *args)
        if self.num_draft_tokens == FAILING["strategy"]["num_draft_tokens"]:
            made.propose = _third_call_raises("strategy", made.propose)
        return made

    def make_sampler(temp: float, **kwargs: Any) -> Any:
        made = sampler(temp, **kwargs)
        return _third_call_raises("sampler", made) if temp == FAILING["sampler"]["temperature"] else made

    def make_processors(*args: Any) -> Any:
        made = processors(*args)
        if FAILING["processor"]["repetition_penalty"] in args:
            made = [_third_call_raises("processor", each) for each in made]
        if FAILING["pass"]["presence_penalty"] in args:
            llama.Model.__call__ = _third_call_raises("pass", call)
        return made

    n_formatted = count(1)

    def format_tops(logprobs: Any, n: int, *args: Any) -> Any:
        if n == FAILING["format"]["top_logprobs"] and next(n_formatted) % 3 == 0:
            raise ZeroDivisionError("the format raises")
        return tops(logprobs, n, *args)

    DraftOptions.make_strategy, server.make_sampler = make_strategy, make_sampler
    server.make_logits_processors, server._format_top_logprobs = make_processors, format_tops


def fail_together() -> None:
    """An error of one row ends the other rows too."""
    raise_for_some()
    finish, errors = "responses = self._finish_block()", "self.planner.errors"
    fail = f"{errors} |= {{uid: error for error in list({errors}.values()) for uid in self.uids}}"
    GenerationBatch.settle = mutant(GenerationBatch.settle, finish, f"{finish}\n    {fail}")
