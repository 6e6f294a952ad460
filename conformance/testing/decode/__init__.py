"""Decode plain, drafted and in batches, and compare."""
