"""How a test reaches the product: a batch, a server, a command, ranks."""
