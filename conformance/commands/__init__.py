"""Every option of mlx_lm.generate, chat and server arrives where it acts."""
