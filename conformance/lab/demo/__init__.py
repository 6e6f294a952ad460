"""A few prompts with and without prompt lookup. python -m conformance.lab.demo"""
