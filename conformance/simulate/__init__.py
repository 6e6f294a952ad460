"""What drafting is worth on recorded streams, without a model. python -m conformance.simulate"""
