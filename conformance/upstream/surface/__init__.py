"""The suite knows every model file and cache class of the release."""
