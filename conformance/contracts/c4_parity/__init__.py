"""C4: the tokens and log probabilities of plain decoding."""
