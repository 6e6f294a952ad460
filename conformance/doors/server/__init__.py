"""A real server process, its clients and their requests."""
