"""Texts that answers repeat, and token streams of such answers."""
