"""Draw which tokens of an answer came in one forward pass: python -m conformance.lab.picture docs/drafts.svg"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

from mlx_lm import load, stream_generate
from mlx_lm.draft import device_costs

from conformance import FIXTURE

CODE = "total = 0\nfor name, amount in rows:\n    total += amount\nprint(total)"
ASKED = f"Change `total` to `count`.\n```\n{CODE}\n```"
# Of a character, a line and the edge, in pixels.
WIDTH, HEIGHT, EDGE = 9, 26, 16
# Blue and orange of Okabe and Ito, which colour-blind people tell apart.
STYLE = """
text { font: 15px ui-monospace, Menlo, Consolas, monospace; fill: #1f2328; white-space: pre; }
.small { font: 13px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #59636e; }
.page { fill: #ffffff; stroke: #d1d9e0; }
.even { fill: #56b4e9; fill-opacity: .38; } .odd { fill: #e69f00; fill-opacity: .38; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; } .small { fill: #9198a1; } .page { fill: #0d1117; stroke: #3d444d; }
}
"""


def passes() -> list[list[str]]:
    """The tokens of the answer as texts, those of one pass together: a pass ends with the model's own token."""
    model, tokenizer = load(str(FIXTURE))
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": ASKED}], add_generation_prompt=True)
    found, tokens = [list[str]()], list[int]()
    # The costs of an M4, on any machine.
    options = {"draft_type": "auto", "draft_costs": device_costs("metal")}
    for response in stream_generate(model, tokenizer, prompt, max_tokens=100, **options):
        if response.token in tokenizer.eos_token_ids:
            break
        n_before = len(tokenizer.decode(tokens))
        tokens.append(response.token)
        found[-1].append(tokenizer.decode(tokens)[n_before:])
        if not response.from_draft:
            found.append([])
    return [one for one in found if one]


def parts(blocks: list[list[str]]) -> Iterator[tuple[str, str, int, int]]:
    """The class of a box, a text, its column and its line: a pass that ends a line has two."""
    column = line = 0
    for n, tokens in enumerate(blocks):
        box = ("even", "odd")[n % 2] if len(tokens) > 1 else ""
        for i, text in enumerate("".join(tokens).split("\n")):
            line, column = (line + 1, 0) if i else (line, column)
            if text:
                yield box, text, column, line
            column += len(text)


def written(text: str, x: int, y: int, more: str = "") -> str:
    return f'<text x="{x}" y="{y + 17}" xml:space="preserve"{more}>{escape(text)}</text>'


def drawn(blocks: list[list[str]]) -> str:
    """An SVG of the question and its answer, with a box around the tokens of each pass that gave several."""
    question = ASKED.split("\n")
    lines = [written(line, EDGE, EDGE + i * HEIGHT) for i, line in enumerate(question)]
    top = bottom = EDGE + HEIGHT * (len(question) + 1)
    for box, text, column, line in parts(blocks):
        x, bottom, width = EDGE + column * WIDTH, top + line * HEIGHT, len(text) * WIDTH
        if box:
            lines.append(f'<rect class="{box}" x="{x}" y="{bottom}" width="{width - 1}" height="{HEIGHT - 4}" rx="4"/>')
        # Each font gives the characters the same width.
        lines.append(written(text, x, bottom, f' textLength="{width}" lengthAdjust="spacingAndGlyphs"'))
    told = f"{sum(map(len, blocks))} tokens in {len(blocks)} passes. Each box came in one pass, the rest one by one."
    lines.append(written(told, EDGE, bottom + HEIGHT + 4, ' class="small"'))
    size = f'width="{2 * EDGE + int(len(told) * 6.2)}" height="{bottom + 2 * HEIGHT + 12}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{told}">\n<style>{STYLE}</style>'
    return "\n".join([head, f'<rect class="page" {size} rx="8"/>', *lines, "</svg>\n"])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawn(passes()), "utf-8")
