"""Every option of mlx_lm.generate, chat and server reaches the code that uses it."""
