"""Count how often the fixture's whole answer is the right one, on texts that it was not trained on.

python -m conformance.fixture_report
"""

from __future__ import annotations

import argparse
import random
import sys

from mlx_lm import generate, load

from conformance.demo import FIXTURE
from conformance.workloads import KINDS, Corpus, draw

SAMPLES, CHARS = 5, 260


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    model, tokenizer = load(str(FIXTURE))
    corpus = Corpus.load(held_out=True)
    for kind in KINDS:
        rng, seen, right = random.Random(9), 0, 0
        while seen < SAMPLES:
            messages = draw(rng, corpus, kind, CHARS)
            if messages:
                prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True)
                right += generate(model, tokenizer, prompt, max_tokens=260) == messages[-1]["content"]
                seen += 1
        print(f"{kind}: {right} of {SAMPLES}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
