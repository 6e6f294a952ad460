"""C10: in a batch each row is what it is alone."""
