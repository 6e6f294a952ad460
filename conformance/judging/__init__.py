"""Judge a tree of mlx-lm through an adapter: scripts/judge.sh TREE, docs/releases.md."""
