"""The patches: check them out, run their tests, lint them."""
