"""mlx_lm.chat, with lines that are typed."""
