"""Kernels by name, number format, operator and sequence."""
