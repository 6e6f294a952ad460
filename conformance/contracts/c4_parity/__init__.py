"""C4: drafting gives the tokens and log probabilities of plain decoding."""
