"""Collectives, all-reduce against expectation, and how ranks differ."""
