"""Tests of the tools and the benchmark."""
