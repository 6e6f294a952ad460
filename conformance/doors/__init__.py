"""How a test reaches the product: a server, a command, ranks."""
