"""Shared by several subjects: when a GPU is busy and idle, the division of time, labels, the call tree, kernels' names."""
