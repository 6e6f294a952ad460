"""The suite knows every model file, cache class, option and signature of the release."""
