"""Collectives, all-reduce time against the expected time, and differences between ranks."""
