"""How many examples and tokens stand behind a test, where the suite has them at hand; the scorecard shows them."""

from __future__ import annotations

from collections import Counter

# Since the process began: "examples" are random programs, requests or upstream's tests, "tokens" are those decoded
# with drafts and compared with plain decoding.
TALLY: Counter[str] = Counter()
