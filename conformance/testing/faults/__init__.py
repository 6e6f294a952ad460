"""Faults to plant, to test that the checks find them."""
