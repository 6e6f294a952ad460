"""Import what every tree of mlx-lm needs. This takes five of the six seconds that a test of mlx-lm needs to start."""

import pytest
import transformers

__all__ = ["pytest", "transformers"]

for _name in ("AutoTokenizer", "PreTrainedTokenizer", "PreTrainedTokenizerFast"):
    # transformers imports its parts on first use.
    getattr(transformers, _name)
