"""Models with a draft head: what they decode, and what their heads hold."""
