"""What holds of mlx-lm, and what shows it: README.md beside this says which folder holds what."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
# A llama of one million parameters that copies, edits and quotes.
FIXTURE = Path(__file__).parent / "fixture"
