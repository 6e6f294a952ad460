"""What upstream ships beside the package: its tests, and what it calls its own."""
