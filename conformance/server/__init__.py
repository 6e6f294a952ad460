"""mlx_lm.server, with other clients and with any body."""
