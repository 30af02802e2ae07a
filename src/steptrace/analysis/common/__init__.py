"""Shared by several subjects: busy time, steps, launches, the call tree, names of kernels, and their tables."""
