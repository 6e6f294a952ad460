"""The commands with recorders where their options act, and several ranks."""
