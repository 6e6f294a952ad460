"""C2: a cache that cannot be rolled back is restored, or raises an error."""
