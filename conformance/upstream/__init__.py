"""The faults of upstream."""
