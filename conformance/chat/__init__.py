"""mlx_lm.chat in a terminal."""
