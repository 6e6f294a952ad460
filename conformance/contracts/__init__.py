"""C1 to C10. docs/contracts.md says what each contract requires, and why."""
