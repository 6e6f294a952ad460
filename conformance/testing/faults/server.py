"""Faults to plant in the process of a server. The tests of the server have to find them."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any
from unittest import mock

import mlx.core as mx
from mlx_lm import server
from mlx_lm.draft.ngram_mod import NgramModStrategy
from mlx_lm.draft.options import DraftOptions
from mlx_lm.generate import StopSequences
from mlx_lm.models import llama
from mlx_lm.models.cache import LRUPromptCache

# In seconds. A server has to stop sooner, even during work that takes far longer.
SOON, TOO_LONG = 20.0, 600.0


def drop_the_options() -> None:
    server.request_draft_options = lambda *_, **__: DraftOptions()


def store_a_token_too_many() -> None:
    """A stored cache holds one token more than its key says."""
    insert = LRUPromptCache.insert_cache

    def insert_longer(self: Any, model: Any, tokens: Any, cache: Any, **kwargs: Any) -> None:
        insert(self, model, tokens[:-1], cache, **kwargs)

    LRUPromptCache.insert_cache = insert_longer


def match_stop_words_as_tokens() -> None:
    """As the release does, a row ends where exactly the tokens of a stop word are."""
    make = server.ResponseGenerator._make_state_machine

    def make_of_tokens(self: Any, key: Any, tokenizer: Any, words: Any, *args: Any) -> Any:
        _, text_sm = make(self, key, tokenizer, words, *args)
        encoded = [tokenizer.encode(word, add_special_tokens=False) for word in words]
        ends = [(token,) for token in tokenizer.eos_token_ids]
        return StopSequences([*ends, *map(tuple, encoded)]), text_sm

    server.ResponseGenerator._make_state_machine = make_of_tokens


def stop_a_token_late() -> None:
    """The token behind the stop word is counted and cached."""
    advance = server.StopWords.Matcher.advance

    def advance_late(self: Any, token: int) -> bool:
        late, self.late = getattr(self, "late", False), False
        self.late = late or advance(self, token)
        return bool(late)

    server.StopWords.Matcher.advance = advance_late


def answer_in_words() -> None:
    """An error is a string instead of an object."""

    def send(self: Any, code: int, message: str) -> None:
        self._set_completion_headers(code)
        self.end_headers()
        self.wfile.write(json.dumps({"error": message}).encode())

    server.APIHandler._send_error = send


def never_look_at_the_client() -> None:
    """The server does not notice that a client left while it waited for the whole answer."""
    server.APIHandler._check_client = lambda _: None


def save_often() -> None:
    """Not a fault: the server saves the shared memory ten times a second."""
    server.SAVE_INTERVAL = 0.1


def load_slowly() -> None:
    """Not a fault: loading a model takes longer than a server may take to stop."""
    load = server.load

    def load_late(*args: Any, **kwargs: Any) -> Any:
        time.sleep(TOO_LONG)
        return load(*args, **kwargs)

    server.load = load_late


def prefill_slowly() -> None:
    """Not a fault: each chunk of a prompt takes two seconds."""
    call = llama.Model.__call__

    def call_late(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if inputs.shape[1] > 1:
            time.sleep(2)
        return call(self, inputs, *args, **kwargs)

    llama.Model.__call__ = call_late


def load_slowly_and_wait() -> None:
    """A stopping server waits until its model is loaded."""
    load_slowly()
    server.Timer = mock.Mock()


def prefill_slowly_and_wait() -> None:
    """A stopping server waits until a prompt is processed."""
    prefill_slowly()
    server.ResponseGenerator._ends_early = lambda *_: False
    server.Timer = mock.Mock()


def share_predictions() -> None:
    """The shared memory learns the prediction of a request."""
    read = server.ResponseGenerator._draft

    def read_and_learn(self: Any, args: Any, tokenizer: Any) -> Any:
        draft, prediction = read(self, args, tokenizer)
        if prediction and draft.ngram_mod_table:
            NgramModStrategy(draft.ngram_mod_table).observe(prediction)
        return draft, prediction

    server.ResponseGenerator._draft = read_and_learn


def act_as_seed_zero() -> None:
    """Every seed acts as 0."""
    seed = mx.random.seed
    mx.random.seed = lambda _: seed(0)


def tell_streams() -> None:
    """Not a fault: the page /streams makes a stream of mlx, and has its number."""
    get = server.APIHandler.do_GET

    def get_or_tell(self: Any) -> None:
        if self.path != "/streams":
            get(self)
            return
        self._set_completion_headers()
        self.end_headers()
        self.wfile.write(str(mx.new_stream(mx.cpu)).split()[-1].rstrip(")").encode())

    server.APIHandler.do_GET = get_or_tell


def ask_the_model_elsewhere() -> None:
    """The thread of a request with a prediction asks the model for logits."""
    generate = server.ResponseGenerator.generate

    def ask_and_generate(self: Any, request: Any, args: Any, *more: Any) -> Any:
        if args.prediction is not None:
            self.model_provider.model(mx.array([[0]]))
        return generate(self, request, args, *more)

    server.ResponseGenerator.generate = ask_and_generate


def answer_with_all_models() -> None:
    """A request for one model is answered with the list of all."""
    answer = server.APIHandler.handle_models_request

    def answer_with_all(self: Any) -> None:
        self.path = "/v1/models"
        answer(self)

    server.APIHandler.handle_models_request = answer_with_all


def let_any_number_through() -> None:
    """Not a fault: a sampler raises while it is compiled, for a field of another type."""
    server._check_value = lambda *_, **__: None


def stop_without_a_word() -> None:
    """A stopping server does not tell its clients."""
    server.ResponseGenerator.stop_and_join = lambda _: os._exit(0)


def stop_at_a_second_signal() -> None:
    """A second signal cuts a server off while it stops."""
    server._interrupt = signal.default_int_handler
