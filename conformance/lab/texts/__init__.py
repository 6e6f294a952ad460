"""Texts that an answer repeats, and token streams of such answers."""
