"""The tests of upstream, and the names that a release has."""
