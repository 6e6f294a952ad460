"""Lines that show a fault without the suite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.testing.caches.layer_io import WIDTH

FUTURE = "from __future__ import annotations\n"
FEED = f"""
def feed(*tokens):
    rows = mx.broadcast_to(mx.array(tokens, mx.float32)[:, None], ({{batch}}, 1, len(tokens), {WIDTH}))
    for cache in getattr(caches[0], "caches", caches):
        mask = {{mask}}
        print(tokens, "see", cache.update_and_fetch(rows, rows)[0], mask)

"""
MASK = "cache.make_mask(len(tokens), return_array=True, window_size=None)"


def of_cache(code: str, classes: Sequence[str], played: list[tuple[str, int]], functions: str, seen: str) -> str:
    """A program as lines: the cache, how the adapter does what the program needs, and the steps."""
    steps = [f"{name}.step = 4" for name in dict.fromkeys(classes) if name not in ("CacheList", "ConcatenateKVCache")]
    steps.append(f"caches = [{code}]")
    calls = {"snapshot": "taken = snapshot(caches)", "restore": "restore(caches, taken)"}
    token = 0
    for name, n in played:
        if name == "feed":
            steps.append(f"feed({', '.join(str(token + 1 + t) for t in range(n))})")
            token += n
        else:
            steps.append(calls.get(name, f'print("trim returns", trim(caches, {n}))'))
    steps[-1] += f"  # {seen}"
    head = f"import mlx.core as mx\nfrom mlx_lm.models.cache import {', '.join(dict.fromkeys(classes))}\n"
    # As llama4 does it, whose mask says what a query sees.
    mask = "cache.maybe_trim_front()" if "Chunked" in code else MASK
    feed = FEED.format(batch=2 if code.startswith("Batch") else 1, mask=mask)
    return FUTURE * bool(functions) + head + functions + feed + "\n".join(steps)


DECODE = """
module = import_module("mlx_lm.models.{model}")
mx.random.seed(0)
model = module.Model(module.ModelArgs.from_dict({config}))
model.update(tree_map(lambda x: 3 * x if x.ndim > 1 else x, model.parameters()))


class Steered(type(model)):
    def __call__(self, inputs, *args, **kwargs):
        logits = super().__call__(inputs, *args, **kwargs)
        following = (inputs - inputs % {cycle} + (inputs + 1) % {cycle}) % {last}
        return logits + {pull} * (following[..., None] == mx.arange(logits.shape[-1]))


class Drafts:
    name = {drafter!r}

    def draft_model(self, model):
        return {draft_model}(model)


model.__class__ = Steered
prompt = {prompt}
made = []
for drafted in (False, True):
    caches = {caches}
    options = dict(max_tokens={n}, prompt_cache=caches{options})
    mx.random.seed(7)
    if drafted:
        Drafts.right = prompt + [token for token, *_ in made[0]]
        steps = decode(model, prompt, Drafts(), **options)
    else:
        steps = generate_step(mx.array(prompt), model, **options)
    made.append([(int(token), logprobs) for token, logprobs, *_ in islice(steps, {stop})])
    steps.close()
    offsets = [getattr(cache, "offset", None) for cache in caches]
    print("drafted" if drafted else "plain  ", [token for token, _ in made[-1]], offsets)
print("off by", max(float(mx.abs(a[1] - b[1]).max()) for a, b in zip(*made)))
"""
IMPORTS = """\
from importlib import import_module
from itertools import islice
import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache
"""


def of_decode(functions: str, seen: str, **about: Any) -> str:
    """A drafted and a plain decode of a model with random weights."""
    return f"# {seen}\n" + FUTURE + IMPORTS + functions + DECODE.format(**about)
