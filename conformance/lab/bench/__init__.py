"""The benchmark: what prompt lookup gains, what it costs and where it stops. ``scripts/bench.sh`` runs it."""
