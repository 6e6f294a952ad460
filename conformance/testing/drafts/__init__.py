"""Drafters with scripted accepts and rejects, and a backward scan."""
