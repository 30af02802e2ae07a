"""Ways to write one GIoU loss over a number of boxes that varies from image to image, and a float64 reference.

The function, for predicted boxes [N, B, 4] and the real boxes of each image, n of them in image i:

1. the j-th prediction of an image is compared with its j-th box (there is no assignment between the two);
2. the loss is 1 - mean GIoU over all real boxes of the batch, and 1 without any.

All arithmetic is float32, whatever the dtypes of predictions and boxes. The ways differ in how they go from one image's
boxes to the batch's, and so in the number of operators a step launches:

    GIoULoss         what they share: GIoU of rows of boxes, and the mean
    |-- LoopLoss       image after image                                      boxes as `list`
    |-- ConcatLoss     picks each image's predictions, then one GIoU          boxes as `concatenated`
    `-- PaddedLoss     one GIoU over all predictions, most of them masked     boxes as `padded`
        `-- CompiledLoss   the same, compiled by torch.compile

`giou_kernels.py` has those that are operators of the extension; `giou_published.py` the published arithmetic.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from steptrace.workloads.giou_data import Boxes, ConcatenatedBoxes, matched

#: Least area of a union or a hull, so that boxes without area divide nothing by 0.
EPSILON = 1e-5


def generalized_iou(prediction: Tensor, target: Tensor) -> Tensor:
    """GIoU (Rezatofighi et al., CVPR 2019) of each row of two tensors of corners [..., 4], in their dtype: [...].

    A side is at least 0: a box whose corners are the wrong way round is empty, and boxes that do not meet have no
    intersection. Areas of union and hull are at least `EPSILON`.
    """
    intersection = _area(
        torch.maximum(prediction[..., :2], target[..., :2]), torch.minimum(prediction[..., 2:], target[..., 2:])
    )
    hull = _area(
        torch.minimum(prediction[..., :2], target[..., :2]), torch.maximum(prediction[..., 2:], target[..., 2:])
    ).clamp(min=EPSILON)
    areas = _area(prediction[..., :2], prediction[..., 2:]) + _area(target[..., :2], target[..., 2:])
    union = (areas - intersection).clamp(min=EPSILON)
    # Not (hull - union) / hull: its gradient by the hull cancels where the hull is much larger than the union.
    return intersection / union + union / hull - 1


def _area(low: Tensor, high: Tensor) -> Tensor:
    sides = (high - low).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


class GIoULoss(nn.Module):
    """Base class of the losses.

    Args:
        iterations: how often the GIoU of the same boxes is computed; the loss is the mean over the repetitions. More
            than 1 stands for box arithmetic that is heavier than GIoU.
    """

    #: Names a part of the loss in a trace.
    label: Callable[[str], AbstractContextManager[Any]] = record_function

    def __init__(self, iterations: int = 1) -> None:
        super().__init__()
        self.iterations = iterations

    def box_giou(self, prediction: Tensor, target: Tensor) -> Tensor:
        """GIoU of each row of predictions and boxes [..., 4] of any dtype, as float32 [...]."""
        with self.label("giou"):
            prediction, target = prediction.float(), target.float()
            total = generalized_iou(prediction, target)
            for _ in range(self.iterations - 1):
                total = total + generalized_iou(prediction, target)
            return total / self.iterations if self.iterations > 1 else total

    def mean_loss(self, total: Tensor, count: Tensor | int) -> Tensor:
        """The loss, given the sum of GIoU over the real boxes and their number, which is at least 1."""
        with self.label("mean"):
            return 1 - total / count


class LoopLoss(GIoULoss):
    """The baseline: image after image, so every operator runs once per image, on a handful of boxes."""

    def forward(self, output: Tensor, target: Sequence[Tensor]) -> Tensor:
        """Return the scalar loss of predictions [N, B, 4] against each image's boxes [n, 4]."""
        total = output.new_zeros((), dtype=torch.float32)
        count = 0
        for prediction, boxes in zip(output, target, strict=True):
            total = total + self.box_giou(prediction[: len(boxes)], boxes).sum()
            count += len(boxes)
        return self.mean_loss(total, max(count, 1))


class ConcatLoss(GIoULoss):
    """One GIoU over all real boxes, for which each image's predictions are picked and concatenated first."""

    def forward(self, output: Tensor, target: ConcatenatedBoxes) -> Tensor:
        """Return the scalar loss of predictions [N, B, 4] against the batch's concatenated boxes."""
        with self.label("concat"):
            picked = [prediction[:count] for prediction, count in zip(output, target.counts, strict=True)]
            predictions = torch.cat(picked)
        return self.mean_loss(self.box_giou(predictions, target.boxes).sum(), max(sum(target.counts), 1))


class PaddedLoss(GIoULoss):
    """One GIoU over all predictions: no size depends on the data, and most of the arithmetic is thrown away."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the scalar loss of predictions [N, B, 4] against boxes [N, B, 4] padded with zeros."""
        with self.label("mask"):
            real = target[..., 3] > 0
            # Two empty boxes have a GIoU of 0. Masking first keeps a prediction that overflows out of the gradient too,
            # where 0 times infinity would not be 0.
            output = torch.where(real[..., None], output, 0)
        return self.mean_loss(self.box_giou(output, target).sum(), real.sum().clamp(min=1))


class CompiledLoss(PaddedLoss):
    """`PaddedLoss` with its operators fused by torch.compile.

    That needs a C++ compiler on a CPU and Triton on a GPU; the first step takes as long as the compiler does.
    """

    # What is compiled has no parts left to name, and the compiler warns of labels that it drops.
    label = staticmethod(lambda _name: nullcontext())

    def __init__(self, iterations: int = 1) -> None:
        super().__init__(iterations)
        self._compiled = torch.compile(super().forward, fullgraph=True, dynamic=False)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the scalar loss of predictions [N, B, 4] against boxes [N, B, 4] padded with zeros."""
        with record_function("compiled"):
            return self._compiled(output, target)


class ReferenceLoss(nn.Module):
    """The same function in float64, image by image and box by box, for boxes in any form.

    Slow and plain on purpose: it is what a variant must agree with. It shares no arithmetic with the variants.

    Args:
        iterations: taken so that a study can set it for all its losses; repeating changes no mean.
    """

    def __init__(self, iterations: int = 1) -> None:
        super().__init__()
        self.iterations = iterations

    def forward(self, output: Tensor, target: Boxes) -> Tensor:
        """Return the scalar float64 loss of predictions [N, B, 4] against the boxes of a batch."""
        scores = [
            _giou_of_one(prediction, box)
            for predictions, boxes in matched(output.double(), target)
            for prediction, box in zip(predictions.unbind(), boxes.double().unbind(), strict=True)
        ]
        # 0 times the output where there is no box: still attached to the network, so that backward() finds gradients.
        total = torch.stack(scores).sum() if scores else 0 * output.double().sum()
        return 1 - total / max(len(scores), 1)


def _giou_of_one(prediction: Tensor, box: Tensor) -> Tensor:
    """GIoU of two boxes [4], written coordinate by coordinate."""
    px1, py1, px2, py2 = prediction.unbind()
    tx1, ty1, tx2, ty2 = box.unbind()
    intersection = _side(px1.maximum(tx1), px2.minimum(tx2)) * _side(py1.maximum(ty1), py2.minimum(ty2))
    hull = _side(px1.minimum(tx1), px2.maximum(tx2)) * _side(py1.minimum(ty1), py2.maximum(ty2))
    union = _side(px1, px2) * _side(py1, py2) + _side(tx1, tx2) * _side(ty1, ty2) - intersection
    union, hull = union.clamp(min=EPSILON), hull.clamp(min=EPSILON)
    return intersection / union - 1 + union / hull


def _side(low: Tensor, high: Tensor) -> Tensor:
    return (high - low).clamp(min=0)
