"""What drafting gains and costs: simulated, timed and shown. It measures and promises nothing."""
