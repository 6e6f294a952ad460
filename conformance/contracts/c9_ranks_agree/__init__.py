"""C9: two ranks decode the same tokens as one."""
