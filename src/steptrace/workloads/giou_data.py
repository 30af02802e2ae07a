"""The box-detection workload's data: images of noise, each with a number of boxes that varies from image to image.

A batch can hold its boxes in three forms, and each variant needs one of them, which is part of its cost:

- `list`: one tensor [n, 4] per image, so one copy to the device per image;
- `concatenated`: one tensor with the boxes of all images one after the other, and the counts, which stay on the host;
- `padded`: one tensor [N, max_boxes, 4], filled up with rows of zeros.

Boxes are corners (x1, y1, x2, y2) in pixels, in uint8. A real box has y2 of at least 1, padding has 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from steptrace.errors import ConfigError

#: The forms of a batch's boxes.
FORMS = ("list", "concatenated", "padded")

#: Standard deviation of the normal distribution that the number of boxes comes from.
_COUNT_DEVIATION = 3.0


@dataclass(frozen=True)
class ConcatenatedBoxes:
    """The boxes of a batch's images one after the other: [sum of counts, 4]; `counts` are plain numbers on the host."""

    boxes: Tensor
    counts: tuple[int, ...]

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "ConcatenatedBoxes":
        """The same with the boxes on `device`."""
        return ConcatenatedBoxes(self.boxes.to(device, non_blocking=non_blocking), self.counts)

    def pin_memory(self) -> "ConcatenatedBoxes":
        """The same with the boxes in pinned memory; the loader calls it where `pin_memory` is set."""
        return ConcatenatedBoxes(self.boxes.pin_memory(), self.counts)


#: A batch's boxes in one of the `FORMS`.
Boxes = list[Tensor] | ConcatenatedBoxes | Tensor


class RandomBoxes(Dataset[tuple[Tensor, Tensor]]):
    """Grey images of uniform noise, each with clip(floor(|N(0, 3)|), 0, max_boxes - 1) boxes.

    Both sides of a box are drawn from [1, image_size), its first corner from [0, image_size - 1); the second corner is
    cut off at the image's edge. Sample `i` depends on `seed` and `i` alone, so it is the same in every worker, in every
    order and in every form.

    Args:
        length: number of samples.
        image_size: height and width in pixels, from 3 to 256 (coordinates are uint8).
        max_boxes: rows of the padded form; an image has fewer boxes than this.
        form: how a batch holds its boxes, one of `FORMS`.
        seed: a non-negative integer; another seed is another data set.
    """

    def __init__(
        self, length: int, image_size: int = 256, max_boxes: int = 256, form: str = "padded", seed: int = 0
    ) -> None:
        if form not in FORMS:
            raise ConfigError(f"unknown form {form!r} of boxes", where="data.dataset.form", expected=" | ".join(FORMS))
        if not 3 <= image_size <= 256:
            raise ConfigError(
                f"image_size is {image_size}", where="data.dataset.image_size", expected="3 to 256, as boxes are uint8"
            )
        self.length = length
        self.image_size = image_size
        self.max_boxes = max_boxes
        self.form = form
        self.seed = seed

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return image [1, S, S] and boxes [n, 4] of sample `index`, both uint8."""
        # NumPy mixes (seed, index) into independent streams; torch's CPU generator keeps only 32 bits of its seed.
        random = np.random.default_rng([self.seed, index])
        size = self.image_size
        count = min(int(abs(random.normal(0.0, _COUNT_DEVIATION))), self.max_boxes - 1)
        first = random.integers(0, size - 1, (count, 2))
        second = np.minimum(first + random.integers(1, size, (count, 2)), size - 1)
        image = random.integers(0, 256, (1, size, size), dtype=np.uint8)
        return torch.from_numpy(image), torch.from_numpy(np.concatenate([first, second], axis=1).astype(np.uint8))

    def collate(self, samples: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Boxes]:
        """Make a batch of samples: images [N, 1, S, S], and their boxes in the data set's form."""
        images, boxes = zip(*samples, strict=True)
        return torch.stack(images), self._in_form(list(boxes))

    def edge_cases(self) -> list[tuple[Tensor, Boxes]]:
        """Batches of two with the special cases of a varying number of boxes.

        In this order: no box at all; no box in the first image; as many as fit in both; one box of the whole image and
        one of a single pixel; boxes without area beside others.
        """
        edge = self.image_size - 1
        few = self[0][1].new_tensor([[1, 1, edge - 1, edge], [0, 1, edge, edge]])
        none = few[:0]
        many = few[:1].repeat(self.max_boxes - 1, 1)
        extremes = few.new_tensor([[0, 0, edge, edge], [edge - 1, edge - 1, edge, edge]])
        flat = few.new_tensor([[1, 1, 1, edge], [0, edge, edge, edge]])
        boxes = [(none, none), (none, few), (many, many), (extremes[:1], extremes[1:]), (few, flat)]
        images = [self[i % self.length][0] for i in range(2)]
        return [self.collate(list(zip(images, pair, strict=True))) for pair in boxes]

    def _in_form(self, boxes: list[Tensor]) -> Boxes:
        if self.form == "list":
            return boxes
        if self.form == "concatenated":
            return ConcatenatedBoxes(torch.cat(boxes), tuple(len(image) for image in boxes))
        # One row more than any image has, so that the result is as wide as `max_boxes` whatever the batch holds.
        return pad_sequence([boxes[0].new_zeros(self.max_boxes, 4), *boxes], batch_first=True)[1:]


def matched(prediction: Tensor, boxes: Boxes) -> list[tuple[Tensor, Tensor]]:
    """Each image's predictions with a box, and these boxes: [n, 4] and [n, 4].

    The i-th prediction belongs to the i-th box; other predictions are ignored. For predictions [N, max_boxes, 4] and
    boxes in any form. Slow, since sizes depend on the data: for references and tests.
    """
    if isinstance(boxes, ConcatenatedBoxes):
        boxes = list(torch.split(boxes.boxes, list(boxes.counts)))
    if isinstance(boxes, list):
        return [(ours[: len(theirs)], theirs) for ours, theirs in zip(prediction, boxes, strict=True)]
    real = boxes[..., 3] > 0
    return [(ours[keep], theirs[keep]) for ours, theirs, keep in zip(prediction, boxes, real, strict=True)]
