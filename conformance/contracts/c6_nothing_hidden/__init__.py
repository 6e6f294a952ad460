"""C6: what is not done is said, and contradictions are errors."""
