"""What the heads of published checkpoints compute and draft."""
