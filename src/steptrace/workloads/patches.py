"""A small image classifier of convolutions and attention, and random images for it.

Its time goes to what tensor cores do (convolutions, matrix products, attention) as well as to what only reads and
writes (normalisation, activations, the optimizer), so that a number format shows in both.
"""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.data import Dataset

#: Each convolution of the stem but the first halves the image: the tokens are its pixels after these.
_HALVINGS = 3


class PatchNet(nn.Module):
    """A convolutional stem that makes tokens of an image, blocks of attention over them, and a classifier.

    Args:
        in_channels: channels of the image.
        width: size of a token, a multiple of 8 x `heads`, as tensor cores want it.
        blocks: number of attention blocks.
        heads: attention heads.
        classes: number of classes.
    """

    def __init__(
        self, in_channels: int = 3, width: int = 64, blocks: int = 2, heads: int = 4, classes: int = 16
    ) -> None:
        super().__init__()
        channels = [in_channels, width // 4, width // 2, width // 2, width]
        layers: list[nn.Module] = []
        for index, (in_channels, out_channels) in enumerate(pairwise(channels)):
            stride = 2 if index else 1
            layers += [
                nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1),
                nn.GroupNorm(4, out_channels),
                nn.GELU(),
            ]
        self.stem = nn.Sequential(*layers)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        """Map images [N, in_channels, H, W], H and W multiples of 8, to logits [N, classes]."""
        tokens = self.stem(image).flatten(2).transpose(1, 2)  # [N, H/8 * W/8, width]
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens).mean(1))  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped


class _Block(nn.Module):
    """Attention and a perceptron, each around a shortcut and after a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.projections = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.before_perceptron = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens [N, T, width] to tokens of the same shape."""
        parts = self.projections(self.before_attention(tokens)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        tokens = tokens + self.out(mixed)
        return tokens + self.perceptron(self.before_perceptron(tokens))  # type: ignore[no-any-return]


class RandomImages(Dataset[tuple[Tensor, int]]):
    """Images of standard normal noise, each with a class drawn uniformly.

    Sample `i` depends on `seed` and `i` alone, so it is the same in every worker, in every order and in every variant.

    Args:
        length: number of samples.
        image_size: height and width in pixels.
        channels: channels of the image.
        classes: number of classes.
        seed: a non-negative integer; another seed is another data set.
    """

    def __init__(self, length: int, image_size: int, channels: int = 3, classes: int = 16, seed: int = 0) -> None:
        if image_size % 2**_HALVINGS:
            raise ValueError(f"image_size is {image_size}, no multiple of {2**_HALVINGS}")
        self.length = length
        self.image_size = image_size
        self.channels = channels
        self.classes = classes
        self.seed = seed

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return image [channels, S, S] (float32) and class of sample `index`."""
        random = np.random.default_rng([self.seed, index])
        image = random.standard_normal((self.channels, self.image_size, self.image_size), dtype=np.float32)
        return torch.from_numpy(image), int(random.integers(self.classes))
