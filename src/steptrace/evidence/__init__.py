"""Results of GPU nodes: collected into a folder that can be committed, and shown as tables."""
