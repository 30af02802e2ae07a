"""The box-detection workload's network: convolutions that quarter the image, and two linear layers that name boxes."""

import torch
from torch import Tensor, nn


class GIoUNet(nn.Module):
    """Blocks of convolution, max-pooling and ReLU, then two linear layers whose output is read as boxes.

    Block i turns 4^i channels into 4^(i+1) and halves height and width, so every block halves the number of values.

    Args:
        image_size: height and width of the image in pixels, a multiple of 2^blocks.
        blocks: number of convolution blocks.
        hidden: width of the first linear layer.
        boxes: number of boxes predicted for an image.
    """

    def __init__(self, image_size: int = 256, blocks: int = 4, hidden: int = 16384, boxes: int = 256) -> None:
        super().__init__()
        self.boxes = boxes
        self.blocks = nn.ModuleList(nn.Conv2d(4**i, 4 ** (i + 1), kernel_size=3, padding="same") for i in range(blocks))
        features = 4**blocks * (image_size // 2**blocks) ** 2
        self.hidden = nn.Linear(features, hidden)
        self.last = nn.Linear(hidden, 4 * boxes)

    def forward(self, image: Tensor) -> Tensor:
        """Map images [N, 1, S, S] of any dtype to corners (x1, y1, x2, y2) of boxes [N, boxes, 4] in pixels."""
        x = image.to(self.last.weight.dtype)
        for convolution in self.blocks:
            x = torch.relu(torch.max_pool2d(convolution(x), kernel_size=2))
        x = torch.relu(self.hidden(x.flatten(start_dim=1)))
        return self.last(x).view(-1, self.boxes, 4)  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped
