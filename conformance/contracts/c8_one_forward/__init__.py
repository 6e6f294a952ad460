"""C8: one forward pass for each cycle, and no token is fed twice without need."""
