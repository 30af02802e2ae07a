"""What a training step would take on a GPU that is not there: its time, how busy the GPU is, and its memory.

The operators come from a prediction (`steptrace.documents.operators`), the GPU's figures from its data sheet, and the
spread of every figure from published measurements (`steptrace.estimate.rules`). Imports no torch.
"""

from steptrace.estimate.gpus import Gpu, gpu_named
from steptrace.estimate.memory import largest_batch
from steptrace.estimate.prediction import estimate_prediction
from steptrace.estimate.step import FollowedStep, estimate_step

__all__ = ["FollowedStep", "Gpu", "estimate_prediction", "estimate_step", "gpu_named", "largest_batch"]
