"""The results of runs of the suite as a table by contract: docs/releases.md."""
