"""What the tests and the benchmark use."""
