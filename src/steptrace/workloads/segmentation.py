"""The masked-segmentation workload: a small convolutional network and random images with label maps."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class SegmentationNet(nn.Module):
    """A plain stack of 3x3 convolutions that keeps the image's size and ends in one logit per class and pixel.

    Args:
        in_channels: channels of the image.
        hidden: channels of every hidden layer.
        layers: hidden convolutions between the first one and the one that makes the logits.
        classes: number of classes.
    """

    def __init__(self, in_channels: int = 3, hidden: int = 10, layers: int = 10, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Conv2d(in_channels, hidden, kernel_size=3, padding="same")
        self.hidden = nn.ModuleList(nn.Conv2d(hidden, hidden, kernel_size=3, padding="same") for _ in range(layers))
        self.last = nn.Conv2d(hidden, classes, kernel_size=3, padding="same")

    def forward(self, image: Tensor) -> Tensor:
        """Map images [N, in_channels, H, W] to logits [N, classes, H, W]."""
        x = torch.relu(self.first(image))
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.last(x)  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped


class RandomMasks(Dataset[tuple[Tensor, Tensor]]):
    """Images of standard normal noise, each with a label map drawn uniformly from {-1, 0, ..., classes - 1}.

    The label -1 means "ignore". With `kept` a pixel has that probability of a label that counts, drawn uniformly from
    {0, ..., classes - 2}; all others are ignored. Without it the probability is (classes - 1) / (classes + 1).

    Sample `i` depends on `seed` and `i` alone, so it is the same in every worker, in every order and in every variant.

    Args:
        length: number of samples.
        image_size: height and width in pixels.
        channels: channels of the image.
        classes: number of classes; the last one is the background.
        seed: a non-negative integer; another seed is another data set.
        kept: the share of pixels whose label counts, from 0 to 1; None: labels are uniform, with ignore and background.

    Raises:
        ValueError: `kept` is not from 0 to 1.
    """

    def __init__(
        self,
        length: int,
        image_size: int,
        channels: int = 3,
        classes: int = 10,
        seed: int = 0,
        kept: float | None = None,
    ) -> None:
        if kept is not None and not 0 <= kept <= 1:
            raise ValueError(f"kept is {kept}: expected a share of pixels, from 0 to 1")
        self.kept = kept
        self.length = length
        self.image_size = image_size
        self.channels = channels
        self.classes = classes
        self.seed = seed

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return image [channels, S, S] (float32) and label map [S, S] (int64) of sample `index`."""
        # NumPy mixes (seed, index) into independent streams; torch's CPU generator keeps only 32 bits of its seed.
        random = np.random.default_rng([self.seed, index])
        size = (self.image_size, self.image_size)
        image = random.standard_normal((self.channels, *size), dtype=np.float32)
        if self.kept is None:
            labels = random.integers(-1, self.classes, size)
        else:
            labels = np.where(random.random(size) < self.kept, random.integers(0, self.classes - 1, size), -1)
        return torch.from_numpy(image), torch.from_numpy(labels)

    def edge_cases(self) -> list[tuple[Tensor, Tensor]]:
        """Batches of two whose labels meet the special cases of the masked loss.

        In this order: only background; one label; all ignored; one label and background; two labels; no pixel
        ignored. The first three hold fewer than two distinct labels, so their loss is 0.
        """
        images = torch.stack([self[i % self.length][0] for i in range(2)])
        labels = torch.stack([self[i % self.length][1] for i in range(2)])
        background = self.classes - 1
        targets = [
            torch.full_like(labels, background),
            torch.full_like(labels, 1),
            torch.full_like(labels, -1),
            torch.where(labels % 2 == 0, 1, background),
            torch.where(labels % 2 == 0, 0, 1),
            labels.clamp(0, background - 1),
        ]
        return [(images, target) for target in targets]
