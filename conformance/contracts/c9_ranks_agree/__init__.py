"""C9: two ranks decode what one decodes."""
