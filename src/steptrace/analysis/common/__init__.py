"""Shared by several subjects: a GPU's activity and gaps, the division of time, labels, call tree, kernels' names."""
