"""The suite knows all that the release has."""
