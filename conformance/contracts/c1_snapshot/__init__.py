"""C1: a restored cache is exactly as it was at the snapshot."""
