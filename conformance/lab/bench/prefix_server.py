"""Answer requests as mlx_lm.server does, and say what each took. prefixes.py starts one for each tree of mlx-lm.

It takes the options of the server, reads a request a line, and writes a line for each. It needs no more of mlx-lm than
a release has.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import mlx.core as mx
from mlx_lm import server


def answer(responder: Any, messages: list[dict[str, str]], tokens: list[int], seed: int | None) -> dict[str, Any]:
    """Answer with these tokens. Returns the time to the first one, and the bytes of the prompt cache afterwards."""
    request = server.CompletionRequest("chat", "", messages, None, None)
    arguments = server.GenerationArguments(
        model=server.ModelDescription("default_model", "default_model", None),
        sampling=server.SamplingArguments(0.0, 1.0, 0, 0.0, 0.0, 0.0),
        logits=server.LogitsProcessorArguments(None, 0.0, 20, 0.0, 20, 0.0, 20),
        stop_words=[],
        max_tokens=len(tokens),
        num_draft_tokens=0,
        logprobs=False,
        top_logprobs=-1,
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
    given = [next(responses).token]
    seconds = time.perf_counter() - start
    given += [each.token for each in responses]
    # What is held after an answer is stored when its last token is out.
    assert kept.wait(60)
    assert given == tokens
    prompt = len(context.prompt)
    return {"seconds": seconds, "prompt": prompt, "fed": prompt - context.prompt_cache_count, "held": cache.nbytes}


def serve(host: str, port: int, responder: Any) -> None:
    """Takes the place of the HTTP server."""
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            if asked.pop("forget"):
                responder.prompt_cache.trim_to(n_sequences=0)
            print(json.dumps(answer(responder, **asked)), flush=True)
        # A release may abort while Python ends with a thread of it.
        os._exit(0)
    finally:
        responder.stop_and_join()


if __name__ == "__main__":
    server._run_http_server = serve
    server.main()
