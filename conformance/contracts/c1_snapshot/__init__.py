"""C1: restore brings everything back."""
