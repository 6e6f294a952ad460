"""Random programs on caches, and the reference that they are compared with."""
