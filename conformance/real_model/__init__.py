"""SmolLM2 with real text: scripts/check.sh --model smollm2."""
