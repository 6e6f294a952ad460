"""What SmolLM2 said to prompts from real sources, and real edits, as token ids. python -m conformance.lab.recorded"""
