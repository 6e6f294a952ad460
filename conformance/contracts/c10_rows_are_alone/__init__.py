"""C10: each row of a batch decodes as it does alone."""
