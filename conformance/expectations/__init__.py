"""What is expected to fail, for each release with and without the series."""
