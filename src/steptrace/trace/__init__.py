"""Kineto traces: JSON to tables, links between them, and the source line behind an event."""
