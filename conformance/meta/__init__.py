"""Tests of the suite and of this repository."""
