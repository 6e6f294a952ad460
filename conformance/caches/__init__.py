"""Random programs on every kind of prompt cache."""
