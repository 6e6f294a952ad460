"""C1 to C11. docs/contracts.md says what each contract requires, and why."""
