"""The suite: what it knows (workloads, prompts, the fixture) beside what it tests."""
