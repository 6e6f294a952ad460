"""C11: a prompt that begins like a cached one is answered as from nothing."""
