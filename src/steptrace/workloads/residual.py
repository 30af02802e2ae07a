"""The memory workload's network: residual blocks whose activations can be computed again instead of kept."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a ReLU after each, added to what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, kernel_size=3, padding="same")
        self.second = nn.Conv2d(channels, channels, kernel_size=3, padding="same")

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, channels, H, W] to the same shape."""
        result: Tensor = x + torch.relu(self.second(torch.relu(self.first(x))))
        return result


class ResidualNet(nn.Module):
    """Residual blocks that keep the image's size, ending in one logit per class and pixel.

    Args:
        in_channels: channels of the image.
        hidden: channels of every block.
        blocks: number of blocks.
        classes: number of classes.
        checkpointed: keep only each block's input for the backward pass, and compute the block again there.
    """

    def __init__(
        self, in_channels: int = 3, hidden: int = 16, blocks: int = 6, classes: int = 10, *, checkpointed: bool = False
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(in_channels, hidden, kernel_size=3, padding="same")
        self.blocks = nn.ModuleList(ResidualBlock(hidden) for _ in range(blocks))
        self.last = nn.Conv2d(hidden, classes, kernel_size=1)
        self.checkpointed = checkpointed

    def forward(self, image: Tensor) -> Tensor:
        """Map images [N, in_channels, H, W] to logits [N, classes, H, W]."""
        x = torch.relu(self.first(image))
        for block in self.blocks:
            x = self._again(block, x) if self.checkpointed else block(x)
        return self.last(x)  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped

    def _again(self, block: nn.Module, x: Tensor) -> Any:
        # Nothing is drawn at random in a block, so the generators' states need not be kept and set back.
        return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
