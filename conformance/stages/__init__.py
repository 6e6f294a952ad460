"""Which tests hold after which stage of the series."""
