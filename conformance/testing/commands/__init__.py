"""Run the commands with recorders for their options, and run several ranks."""
