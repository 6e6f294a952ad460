"""The expected failures of each release, with and without the series."""
