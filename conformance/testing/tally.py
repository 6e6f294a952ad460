"""Count the examples and tokens that tests checked. The scorecard shows these counts."""

from __future__ import annotations

from collections import Counter

# The counts of this process. "examples" are random programs, requests or tests of upstream. "tokens" are tokens that
# were decoded with drafts and compared with plain decoding.
TALLY: Counter[str] = Counter()
