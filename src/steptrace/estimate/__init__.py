"""What a training step would take on a GPU that is not there: its time, how busy the GPU is, and its memory.

The operators come from a prediction (`steptrace.documents.estimate`), the GPU's figures from its data sheet, and the
spread of every figure from published measurements (`steptrace.estimate.rules`). Imports no torch.
"""
