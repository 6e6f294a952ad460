"""Draw a question and its answer with the drafted tokens in green, as --show-drafts prints them in a terminal.

scripts/tox.sh -e picture    # writes docs/drafts.svg
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from mlx_lm import load, stream_generate
from mlx_lm.draft import BlockCosts
from rich.console import Console
from rich.text import Text

from conformance import FIXTURE, ROOT
from conformance.arguments import parser

# The command of README.md.
QUESTION = (
    "Change `total` to `count`.\n```\ntotal = 0\nfor name, amount in rows:\n    total += amount\nprint(total)\n```"
)
# With known costs the same tokens are drafted each time.
COSTS = BlockCosts((1, 16), (1, 2))


def picture() -> str:
    """The picture, as SVG."""
    model, tokenizer = load(str(FIXTURE))
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": QUESTION}], add_generation_prompt=True)
    shown = Text().append(f"{QUESTION}\n\n", style="dim")
    for response in stream_generate(model, tokenizer, prompt, max_tokens=200, draft_type="auto", draft_costs=COSTS):
        shown.append(response.text, style="green" if response.from_draft else "white")
    console = Console(record=True, width=60, file=io.StringIO())
    console.print(shown)
    drawn = console.export_svg(title="green tokens were guessed right")
    # A page that shows the picture loads no font from elsewhere, and does not stretch it.
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL).replace("<svg ", '<svg width="500" ', 1)


def main() -> None:
    options = parser(__doc__, "python -m conformance.lab.demo.picture")
    options.add_argument("--out", type=Path, default=ROOT / "docs" / "drafts.svg", help="the file to write")
    options.parse_args().out.write_text(picture(), "utf-8")


if __name__ == "__main__":
    main()
