"""C1 to C10: docs/contracts.md says what each asks and why."""
