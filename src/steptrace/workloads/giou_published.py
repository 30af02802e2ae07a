"""The GIoU losses with the arithmetic of the article's listings, kept to show what is wrong with it.

Against the definition in `giou_losses.py`, the listings differ in three ways:

- the boxes are uint8, and so is the product of their sides: an area above 255 wraps around;
- the sides of an intersection are not clamped at 0: boxes that lie apart in both directions get an intersection as if
  they met, the union falls to its least value, and the quotient reaches 1e8 and more;
- the result is the mean GIoU and not 1 minus it: whoever minimises it drives the boxes apart.

The article's CUDA kernel casts to float32 before it multiplies, so its areas do not wrap around: the published variants
do not agree with each other either. `PublishedKernelArithmetic` computes with operators what that kernel computes. Only
hulls without area are treated differently, and the data has none.
"""

import torch
from torch import Tensor

from steptrace.workloads.giou_losses import EPSILON, ConcatLoss, GIoULoss, LoopLoss, PaddedLoss


def published_iou(prediction: Tensor, target: Tensor) -> Tensor:
    """The article's GIoU of each row of two tensors of corners [..., 4], each multiplied in its own dtype: [...]."""
    intersection = _product(
        torch.minimum(prediction[..., 2:], target[..., 2:]) - torch.maximum(prediction[..., :2], target[..., :2])
    )
    hull = _product(
        torch.maximum(prediction[..., 2:], target[..., 2:]) - torch.minimum(prediction[..., :2], target[..., :2])
    ).clamp(min=EPSILON)
    areas = _product(prediction[..., 2:] - prediction[..., :2]) + _product(target[..., 2:] - target[..., :2])
    union = (areas - intersection).clamp(min=EPSILON)
    return intersection / union - (hull - union) / hull


def _product(sides: Tensor) -> Tensor:
    return sides[..., 0] * sides[..., 1]


class PublishedArithmetic(GIoULoss):
    """Replaces GIoU and mean by the published ones in a class that it is mixed into."""

    def box_giou(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The published GIoU of each row, in the dtype that predictions and boxes [..., 4] promote to: [...]."""
        with self.label("giou"):
            return published_iou(prediction, target)

    def mean_loss(self, total: Tensor, count: Tensor | int) -> Tensor:
        """The mean GIoU itself."""
        with self.label("mean"):
            return total / count


class PublishedLoopLoss(PublishedArithmetic, LoopLoss):
    """The loop over images, as published."""


class PublishedConcatLoss(PublishedArithmetic, ConcatLoss):
    """The concatenated form, as published."""


class PublishedPaddedLoss(PublishedArithmetic, PaddedLoss):
    """The padded form, as published."""


class PublishedKernelArithmetic(PublishedPaddedLoss):
    """What the published CUDA kernel computes, by operators: as the padded form, but with areas in float32."""

    def box_giou(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The published kernel's GIoU of each row of predictions and boxes [..., 4], as float32 [...]."""
        return super().box_giou(prediction.float(), target.float())
