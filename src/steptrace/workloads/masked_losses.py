"""Five ways to write one masked segmentation loss, and a float64 reference for them.

The function, for logits [N, C, H, W] and labels [N, H, W]:

1. every background label becomes "ignore";
2. the loss is the mean cross-entropy over the pixels that are not ignored;
3. it is 0 where the labels now hold fewer than two distinct values ("ignore" counts as one).

`BooleanMaskLoss` is how one writes this down first. On a GPU each operation whose result has a size that depends on
the data (`nonzero`, `unique`, a boolean mask) makes the host wait until the device has caught up, because the host has
to know the size to go on. `SecondNonzeroLoss` repeats one of them to show what the wait is for. Each other class
replaces one such operation and inherits the rest, so it reads as a diff:

    BooleanMaskLoss     nonzero + unique + boolean masks
    |-- SecondNonzeroLoss a second nonzero after the first
    |-- WhereLoss         nonzero -> where
        |-- SortLoss        unique and the Python `if` -> sort and where
            |-- IgnoreIndexLoss   boolean masks -> the ignore_index of cross-entropy

All of them leave the caller's labels untouched, and give a loss of 0 with gradients of 0, never NaN, when no pixel
counts.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import Tensor, nn
from torch.profiler import record_function


class BooleanMaskLoss(nn.Module):
    """The baseline: three operations with data-dependent sizes, and a Python `if` on one of them.

    Args:
        ignore_index: the label of pixels that do not count.
        background: the label that is turned into `ignore_index`.
    """

    def __init__(self, ignore_index: int = -1, background: int = 9) -> None:
        super().__init__()
        self.ignore_index = ignore_index
        self.background = background

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the scalar loss of logits [N, C, H, W] against labels [N, H, W] (int64)."""
        target = self.ignore_background(target)
        with record_function("unique"):
            labels = torch.unique(target)
        with record_function("numel"):
            too_few = torch.numel(labels) < 2
        if too_few:
            with record_function("zero loss"):
                # Not a constant: still attached to the network, so that backward() finds gradients, all of them 0.
                return (0.0 * output).sum()
        return self.cross_entropy(output, target)

    def ignore_background(self, target: Tensor) -> Tensor:
        """Return the labels with every background pixel ignored."""
        with record_function("non_zero"):
            background = torch.nonzero(target == self.background, as_tuple=True)
        with record_function("index assignment"):
            target = target.clone()
            target[background] = self.ignore_index
        return target

    def cross_entropy(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy over the pixels that are not ignored."""
        with record_function("create mask"):
            mask = target != self.ignore_index
        with record_function("permute"):
            logits = output.permute(0, 2, 3, 1)
        with record_function("mask"):
            target = target[mask]
            logits = logits[mask]
        with record_function("calc loss"):
            return F.cross_entropy(logits, target)


class SecondNonzeroLoss(BooleanMaskLoss):
    """As the baseline, with a second `nonzero` of the same mask right after the first one.

    It shows what the first wait consists of. The same operator on the same values waits far shorter the second time,
    because nothing is queued before it any more: the first wait is for the queue, not for `nonzero`.
    """

    def ignore_background(self, target: Tensor) -> Tensor:
        """Return the labels with every background pixel ignored."""
        with record_function("create mask"):
            mask = target == self.background
        with record_function("non_zero"):
            background = torch.nonzero(mask, as_tuple=True)
        with record_function("second non_zero"):
            background = torch.nonzero(mask, as_tuple=True)
        with record_function("index assignment"):
            target = target.clone()
            target[background] = self.ignore_index
        return target


class WhereLoss(BooleanMaskLoss):
    """As the baseline, but choosing the new label pixel by pixel instead of collecting the background's indices."""

    def ignore_background(self, target: Tensor) -> Tensor:
        """Return the labels with every background pixel ignored."""
        with record_function("where"):
            return torch.where(target == self.background, self.ignore_index, target)


class SortLoss(WhereLoss):
    """As `WhereLoss`, but counting distinct labels on the device: after sorting, a new label is a step."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the scalar loss of logits [N, C, H, W] against labels [N, H, W] (int64)."""
        target = self.ignore_background(target)
        with record_function("sort"):
            labels, _ = torch.sort(target.flatten())
        with record_function("count distinct"):
            distinct = torch.count_nonzero(torch.diff(labels)) + 1
        loss = self.cross_entropy(output, target)
        with record_function("zero loss"):
            # Also drops the NaN of a mean over no pixel at all: then every label is "ignore", so there is only one.
            return torch.where(distinct < 2, 0.0, loss)


class IgnoreIndexLoss(SortLoss):
    """As `SortLoss`, but leaving the ignored pixels in place: no size depends on the data, so there are no syncs."""

    def cross_entropy(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy over the pixels that are not ignored."""
        with record_function("calc loss"):
            return F.cross_entropy(output, target, ignore_index=self.ignore_index)


class ReferenceLoss(nn.Module):
    """The same function written from its definition in float64, sharing no operation with the variants' masking.

    Slow and plain on purpose: it is what a variant must agree with. The arguments are those of `BooleanMaskLoss`.
    """

    def __init__(self, ignore_index: int = -1, background: int = 9) -> None:
        super().__init__()
        self.ignore_index = ignore_index
        self.background = background

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the scalar float64 loss of logits [N, C, H, W] against labels [N, H, W] (int64)."""
        logits = output.double()
        log_probability = logits - logits.logsumexp(dim=1, keepdim=True)
        # `per_class[c]` is 1 where the label is c and counts, and 0 elsewhere.
        classes = [c for c in range(output.shape[1]) if c not in (self.background, self.ignore_index)]
        per_class = {c: (target == c).double() for c in classes}
        total = sum((-(log_probability[:, c] * here).sum() for c, here in per_class.items()), logits.new_zeros(()))
        counted = sum(here.sum().item() for here in per_class.values())
        remaining = {self.ignore_index if label == self.background else label for label in target.flatten().tolist()}
        return total / max(counted, 1.0) if len(remaining) >= 2 else 0.0 * total
