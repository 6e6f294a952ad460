"""The patches: their checkout, their review, their lint."""
