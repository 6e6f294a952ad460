"""Each model file runs, drafts, rejects and goes on."""
