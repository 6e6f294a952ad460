"""Each model file decodes with drafts, rejects some, and goes on."""
