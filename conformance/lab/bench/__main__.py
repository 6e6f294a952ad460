"""Make the table of docs/use.md that times a server, with the fixture as slow as a larger model: scripts/bench.sh

The table stands between ``<!-- bench serving -->`` and ``<!-- end serving -->``, and its numbers in docs/benchmarks.
"""

from __future__ import annotations

import csv
import logging
import platform
import re
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from conformance import ROOT
from conformance.arguments import parser
from conformance.device import device
from conformance.lab.bench import models, serving
from conformance.lab.bench.cells import LEAST_REPEATS, REPEATS
from conformance.pages import USE
from conformance.tables import number, table

OUT = ROOT / "docs" / "benchmarks"
MARKED = re.compile(r"(?<=<!-- bench serving -->\n).*?(?=<!-- end serving -->)", re.DOTALL)
HEAD = ("requests", "clients", "plain", "speed", "spread", "tokens a forward")
NUMBERS = ("plain", "speed", "low", "high", "tokens_per_forward")
# The clients, the tokens and the repetitions of a row, and the neurons in each MLP.
FULL = ((1, 2, 4, 8), 80, REPEATS, models.HIDDEN)
# It only checks that the benchmark works.
QUICK = ((1, 2), 12, LEAST_REPEATS, 512)


def measure(out: Path, is_quick: bool) -> bool:
    """Write the file. Returns whether all drafted texts are those of plain decoding."""
    clients, tokens, repeats, hidden = QUICK if is_quick else FULL
    rows = []
    for row in serving.measure(models.larger(hidden), clients, tokens, repeats):
        rows.append({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
        logging.info(", ".join(f"{key} {number(value)}" for key, value in row.items()))
    with (out / "serving.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return all(row["parity"] for row in rows)


def shown(out: Path) -> str:
    """The table of the results in the file. Texts that differ have no speed."""
    rows = []
    for row in csv.DictReader((out / "serving.csv").read_text().splitlines()):
        plain, speed, low, high, tokens = (float(row[name]) if row[name] else None for name in NUMBERS)
        spread = ["no parity", "—"] if speed is None else [speed, f"{number(low)} to {number(high)}"]
        rows.append([row["requests"], row["clients"], plain, *spread, tokens])
    return table(HEAD, rows) + "\n"


def main() -> int:
    options = parser(__doc__, "bench.sh")
    options.add_argument("--quick", action="store_true", help="small settings; writes to a temporary directory")
    options.add_argument("--render", action="store_true", help="measure nothing; write the table again")
    args = options.parse_args()
    # One line a row, with its time.
    logging.basicConfig(format="[%(asctime)s] %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    versions = ", ".join(f"{name} {version(name)}" for name in ("mlx-lm", "mlx"))
    logging.info(f"{device()}, python {platform.python_version()}, {versions}")
    out = Path(tempfile.mkdtemp(prefix="bench-")) if args.quick else OUT
    equal = args.render or measure(out, args.quick)
    page = Path(shutil.copy(ROOT / USE, out)) if args.quick else ROOT / USE
    made = shown(out)
    page.write_text(MARKED.sub(lambda _: made, page.read_text()))
    logging.info(f"wrote the table into {page}, and the results into {out}")
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
