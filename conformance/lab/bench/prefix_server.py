"""Answer requests as mlx_lm.server does, and say what each took. prefixes.py starts one for each tree of mlx-lm.

It takes the options of the server, reads a request a line, and writes a line for each. It needs no more of mlx-lm than
a release has.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import threading
import time
from typing import Any

import mlx.core as mx
from mlx_lm import server
from mlx_lm.models.cache import ArraysCache, KVCache

# A hybrid of 48 layers, three of four recurrent with 2.1 MB each: 75 MB a checkpoint, 800 MB of keys and values at 32k.
RECURRENT, GROWING, CONTEXT = 36, 12, 32_768
STATES, KEYS = ((1, 3, 8192), (1, 32, 128, 128)), (1, 2, CONTEXT, 256)


def answer(responder: Any, messages: list[dict[str, str]], tokens: list[int], seed: int | None) -> dict[str, Any]:
    """The answer to a conversation, its time to the first token, and the bytes of the prompt cache after it."""
    request = server.CompletionRequest("chat", "", messages, None, None)
    arguments = server.GenerationArguments(
        model=server.ModelDescription("default_model", "default_model", None),
        sampling=server.SamplingArguments(0.0, 1.0, 0, 0.0, 0.0, 0.0),
        logits=server.LogitsProcessorArguments(None, 0.0, 20, 0.0, 20, 0.0, 20),
        stop_words=[],
        max_tokens=len(tokens),
        num_draft_tokens=0,
        logprobs=True,
        top_logprobs=1,
        seed=seed,
        chat_template_kwargs=None,
    )
    # A server computes one token more than it gives.
    rest = iter([*tokens, 0])
    server._make_sampler = lambda *_: lambda logprobs: mx.full(logprobs.shape[:-1], next(rest), mx.uint32)
    kept = threading.Event()
    cache, insert = responder.prompt_cache, type(responder.prompt_cache).insert_cache

    def insert_and_tell(*args: Any, cache_type: str = "assistant", **more: Any) -> None:
        insert(cache, *args, cache_type=cache_type, **more)
        if cache_type == "assistant":
            kept.set()

    cache.insert_cache = insert_and_tell
    start = time.perf_counter()
    context, responses = responder.generate(request, arguments)
    given = [next(responses)]
    seconds = time.perf_counter() - start
    given += responses
    # What is held after an answer is stored when its last token is out.
    assert kept.wait(60)
    assert [each.token for each in given] == tokens
    return {
        "seconds": seconds,
        "prompt": len(context.prompt),
        "fed": len(context.prompt) - context.prompt_cache_count,
        "greedy": [each.top_tokens[-1]["id"] for each in given],
        "logprobs": [each.logprob for each in given],
        "held": cache.nbytes,
    }


def filled() -> list[Any]:
    """The cache of a large hybrid that has read CONTEXT tokens, without the model."""
    layers: list[Any] = []
    for _ in range(GROWING):
        for _ in range(RECURRENT // GROWING):
            layers.append(ArraysCache(len(STATES)))
            for i, shape in enumerate(STATES):
                layers[-1][i] = mx.random.normal(shape)
        layers.append(KVCache())
        layers[-1].update_and_fetch(mx.zeros(KEYS, mx.bfloat16), mx.zeros(KEYS, mx.bfloat16))
    mx.eval([layer.state for layer in layers])
    return layers


def feed(layers: list[Any]) -> None:
    """Write a token: what is shared with another cache is copied now."""
    token = mx.zeros((*KEYS[:2], 1, KEYS[3]), mx.bfloat16)
    for layer in layers:
        if isinstance(layer, KVCache):
            layer.update_and_fetch(token, token)
    mx.eval([layer.state for layer in layers])


def fetch(cache: Any) -> dict[str, Any]:
    """The seconds to copy a large entry, to fetch it for its next turn, and for a prompt that differs near its end."""
    cache.trim_to(n_sequences=0)
    tokens, entry, more = list(range(CONTEXT)), filled(), {}
    if getattr(cache, "max_checkpoints", 0):
        from mlx_lm.models.cache import Checkpoint

        places = range(CONTEXT - 1000, CONTEXT, 1000 // cache.max_checkpoints)
        more["checkpoints"] = {n: Checkpoint(entry) for n in [*places][: cache.max_checkpoints]}
    cache.insert_cache("large", tokens, entry, **more)
    found: dict[str, Any] = {"held": cache.nbytes}
    asked = {"next": [*tokens, 1], "changed": [*tokens[:-5], -1]}
    ways: dict[str, Any] = {"copy": lambda: (copy.deepcopy(entry), [])}
    ways |= {name: lambda prompt=prompt: cache.fetch_nearest_cache("large", prompt) for name, prompt in asked.items()}
    for name, way in ways.items():
        start = time.perf_counter()
        layers, rest = way()
        feed(layers or [])
        found |= {name: time.perf_counter() - start, f"{name} fed": len(rest)}
        # Two copies at once would need more memory than a request does.
        del layers
    cache.trim_to(n_sequences=0)
    return found


def serve(host: str, port: int, responder: Any) -> None:
    """Takes the place of the HTTP server."""
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            if asked.pop("forget", False):
                responder.prompt_cache.trim_to(n_sequences=0)
            said = answer(responder, **asked) if asked else fetch(responder.prompt_cache)
            print(json.dumps(said), flush=True)
        # A release may abort while Python ends with a thread of it.
        os._exit(0)
    finally:
        responder.stop_and_join()


if __name__ == "__main__":
    server._run_http_server = serve
    server.main()
