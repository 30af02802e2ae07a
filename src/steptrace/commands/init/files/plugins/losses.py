"""Losses of your own. Editing this file trains the variants that use it again, and no other."""

from torch import Tensor, nn

IGNORED = 9


class Mask(nn.Module):
    """The sum over the pixels that count, taken out by a boolean mask, per pixel of the image."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of `output` [N, classes, H, W] for `target` [N, H, W]."""
        loss = nn.functional.cross_entropy(output, target, ignore_index=-1, reduction="none")
        return loss[(target >= 0) & (target != IGNORED)].sum() / target.numel()


class Product(nn.Module):
    """The same number, by a product with zeros and ones."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of `output` [N, classes, H, W] for `target` [N, H, W]."""
        loss = nn.functional.cross_entropy(output, target, ignore_index=-1, reduction="none")
        counts = ((target >= 0) & (target != IGNORED)).to(loss.dtype)
        return (loss * counts).sum() / target.numel()
