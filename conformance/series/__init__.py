"""The patches: check them out, review them, lint them."""
