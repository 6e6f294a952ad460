"""C2: what cannot be rolled back is an error or is restored."""
