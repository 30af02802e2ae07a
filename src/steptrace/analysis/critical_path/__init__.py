"""The critical path of each step."""
