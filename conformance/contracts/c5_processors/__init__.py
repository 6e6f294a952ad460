"""C5: logits processors see the same tokens as in plain decoding."""
