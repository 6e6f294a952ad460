"""C6: nothing is ignored silently, and contradictions are errors."""
