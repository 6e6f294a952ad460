"""C8: forward passes and tokens fed, counted."""
