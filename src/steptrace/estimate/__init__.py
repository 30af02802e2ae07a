"""Estimates a training step on a GPU that this machine does not have: time, GPU utilisation, memory.

The operators come from a prediction (`steptrace.documents.estimate`). The GPU's figures come from its data sheet, and
the uncertainty of each figure from published measurements (`steptrace.estimate.constants`). Imports no torch.
"""
