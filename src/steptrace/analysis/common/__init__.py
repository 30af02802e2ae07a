"""Shared by several subjects: the division of time, labels, the call tree, names of kernels, and series in time."""
