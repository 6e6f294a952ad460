"""Random programs on caches, and the simple reference to compare with."""
