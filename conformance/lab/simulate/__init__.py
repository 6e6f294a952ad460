"""What drafting gains on recorded streams, without a model. python -m conformance.lab.simulate"""
