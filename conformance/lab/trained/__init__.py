"""Draft heads that were really trained, and what they draft: python -m conformance.lab.trained"""
