"""C3: however generation ends, the cache holds what was yielded."""
