"""Tiny models with random weights, of every architecture."""
