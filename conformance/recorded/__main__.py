"""Record the answers of SmolLM2 and the real edits that the simulation reads: conformance/recorded/data.

python -m conformance.recorded answers     # 300 prompts, about half an hour on two cores; goes on where it was ended
python -m conformance.recorded edits       # needs no model, only its tokenizer

Both first download their sources, pinned packages, into vendor/recorded.
"""

from __future__ import annotations

import argparse
import sys

from conformance.recorded import sources


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.recorded",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("answers", "edits"))
    args = parser.parse_args()
    sources.download()
    # Each needs packages that the other does not.
    if args.what == "answers":
        from conformance.recorded.record import record

        record()
    else:
        from conformance.recorded.pairs import write_edits

        write_edits()
    return 0


if __name__ == "__main__":
    sys.exit(main())
