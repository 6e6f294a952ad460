"""Is a user's model decoded exactly, and what does it gain? python -m conformance check|probe|report"""
