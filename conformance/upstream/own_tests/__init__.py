"""Upstream's own tests give the same results as on the stock release."""
