"""The suite and this repository, tested."""
