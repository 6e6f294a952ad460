"""Each model file decodes with drafts, rejects some, and goes on."""

from __future__ import annotations

from functools import cache

from conformance.oracle.profiles import FULL
from conformance.subjects.architectures import classes, recurrent, runnable

# Models whose windows, positions, rotations or attention are like those of no other one.
OF_THEIR_OWN = (
    "afm7 deepseek_v3 deepseek_v32 gemma2 gemma3_text gemma4_text glm4_moe_lite gpt2 gpt_bigcode gpt_oss internlm2 "
    "internlm3 llama longcat_flash longcat_flash_ngram minimax_m3_vl ministral3 mistral4 plamo3"
).split()


@cache
def asked() -> list[str]:
    """The models that are asked everything: of those without recurrent layers one for each kind of cache, and others.

    Any other model has the layers of one of these. It is asked for parity, and the rest in the full profile.
    """
    first = {frozenset(held): name for name, held in reversed(classes().items())}.values()
    return [name for name in runnable() if FULL or name in {*first, *recurrent(), *OF_THEIR_OWN}]
