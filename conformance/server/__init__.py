"""mlx_lm.server with several clients, and with any request body."""
