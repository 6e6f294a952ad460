"""Models with a draft head: what they decode and hold, and what the heads of published checkpoints compute."""
