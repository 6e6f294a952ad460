"""Upstream's own tests pass as on the stock release."""
