"""A server in a process or a thread, its clients, their requests, and the right answers."""
