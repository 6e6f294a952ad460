"""The verdicts tell near ties from faults."""
