"""Is a user's model decoded exactly, and what do its blocks cost? python -m conformance check|probe"""
