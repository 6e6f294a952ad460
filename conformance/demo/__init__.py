"""A few prompts with and without prompt lookup. python -m conformance.demo"""
