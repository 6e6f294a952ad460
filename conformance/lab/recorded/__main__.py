"""Record the answers of SmolLM2 and the real edits that the simulation reads: conformance/lab/recorded/data.

python -m conformance.lab.recorded answers     # 300 prompts, half an hour on two cores; goes on where it was ended
python -m conformance.lab.recorded sampled     # every fourth of them at temperature 0.8 with top-p 0.95 and a seed
python -m conformance.lab.recorded edits       # needs no model, only its tokenizer

Each first downloads their sources, pinned packages, into vendor/recorded.
"""

from __future__ import annotations

import sys

from conformance.lab.recorded import sources
from conformance.testing.arguments import parser


def main() -> int:
    options = parser(__doc__, "python -m conformance.lab.recorded")
    options.add_argument("what", choices=("answers", "sampled", "edits"))
    args = options.parse_args()
    sources.download()
    # Each needs packages that the other does not.
    if args.what == "edits":
        from conformance.lab.recorded.pairs import write_edits

        write_edits()
    else:
        from conformance.lab.recorded.record import record

        record(args.what)
    return 0


if __name__ == "__main__":
    sys.exit(main())
