"""What mlx-lm has: model files, cache classes, options, signatures. python -m conformance.surface TREE"""
