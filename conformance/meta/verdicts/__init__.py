"""Near ties and faults are told apart."""
