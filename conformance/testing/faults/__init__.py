"""Faults to plant: what the checks have to find."""
