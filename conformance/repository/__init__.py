"""Tests of the patches, the scripts and the documents."""
