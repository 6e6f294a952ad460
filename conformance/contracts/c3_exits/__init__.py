"""C3: however generation ends, the cache holds exactly the yielded tokens."""
