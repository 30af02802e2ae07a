"""The twin: the same definition as csrc/giou_math.h in plain PyTorch, differentiated by autograd.

It stands in where no library was built, and it is what the kernels are tested against. About thirty small operators run
where the library needs one.
"""

import torch
from torch import Tensor

from steptrace_giou.checks import check_boxes, check_float32_boxes, math_dtype

EPSILON = 1e-5


def giou(predictions: Tensor, targets: Tensor) -> Tensor:
    """Generalised intersection over union (Rezatofighi et al., CVPR 2019) of each row of two tensors of boxes.

    Every side is clamped at 0, so a reversed box is an empty one, and the areas of the union and of the hull are at
    least 1e-5. The result lies in [-1, 1]; a NaN in a box makes its GIoU NaN.

    Args:
        predictions: (..., 4), corners x1, y1, x2, y2 in any one unit, floating point.
        targets: the same shape and dtype.

    Returns:
        (...), the dtype of the arguments.
    """
    low_p, high_p = predictions[..., :2], predictions[..., 2:]
    low_t, high_t = targets[..., :2], targets[..., 2:]
    intersection = _area(torch.maximum(low_p, low_t), torch.minimum(high_p, high_t))
    union = (_area(low_p, high_p) + _area(low_t, high_t) - intersection).clamp(min=EPSILON)
    hull = _area(torch.minimum(low_p, low_t), torch.maximum(high_p, high_t)).clamp(min=EPSILON)
    return intersection / union - (hull - union) / hull


def _area(low: Tensor, high: Tensor) -> Tensor:
    sides = (high - low).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def giou_loss(predictions: Tensor, targets: Tensor, *, iterations: int = 1) -> Tensor:
    """As `ops.giou_loss`, operator by operator."""
    check_boxes("giou_loss", predictions, targets, iterations)
    dtype = math_dtype(predictions.dtype)
    values, valid = _masked(predictions.to(dtype), targets.to(dtype), iterations)
    return 1 - values.sum() / valid.sum().clamp(min=1)


def box_giou(
    predictions: Tensor, targets: Tensor, *, conditional: bool = False, iterations: int = 1
) -> tuple[Tensor, Tensor]:
    """As `ops.box_giou`; `conditional` changes nothing here, since eager PyTorch cannot skip single boxes."""
    del conditional
    check_float32_boxes("box_giou", predictions, targets, iterations)
    values, valid = _masked(predictions, targets, iterations)
    return values, valid.float()


def _masked(predictions: Tensor, targets: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    valid = targets[..., 3] > 0
    # Replaced before the arithmetic and not after it: 0 times the gradient of an overflow would be NaN.
    predictions = torch.where(valid[..., None], predictions, 0)
    total = giou(predictions, targets)
    for _ in range(iterations - 1):
        total = total + giou(predictions, targets)
    return torch.where(valid, total / iterations, 0), valid
