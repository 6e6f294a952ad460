"""What drafting gains and costs: simulated and timed. It measures and promises nothing."""
