"""The imports that take five of the six seconds in which a test of mlx-lm starts: the same for every tree of it."""

import pytest
import transformers

__all__ = ["pytest", "transformers"]

for _name in ("AutoTokenizer", "PreTrainedTokenizer", "PreTrainedTokenizerFast"):
    # transformers imports what it holds when it is asked for.
    getattr(transformers, _name)
