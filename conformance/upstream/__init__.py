"""The names that a release has, and the faults of upstream."""
