"""C5: logits processors see what plain decoding shows them."""
