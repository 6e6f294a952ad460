"""Drafters that know the answer, and the backward scan."""
