"""What SmolLM2 said to prompts from real sources, and real edits, as token ids.

The program that wrote them is here at commit 0a89995. The texts are of the packages in wheels.txt.
"""
