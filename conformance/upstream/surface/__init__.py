"""The suite knows every model file, and the series has its public names."""
