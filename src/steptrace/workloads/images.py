"""The image workload: PNG files to read, decode and augment for every sample, and a small network to classify them.

The files are written once, by the first process that needs them, and are the same on every machine: their content
depends on their number and size alone. They stand in for a raw data set, and the array beside them for a decoded one.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

from steptrace.errors import TrainError
from steptrace.files import scratch_folder

#: Image `i` belongs to class `i % CLASSES`.
CLASSES = 10
#: Version of the files' content; each has a folder of its own.
_VERSION = 1
#: Their folder, below the working folder. `make clean` removes it.
FOLDER = "results/.cache/images"
#: Standard deviation of the noise: natural images do not compress to nothing either.
_NOISE = 6.0
_ARRAY = "images.npy"
_DONE = "complete"

Pixels = NDArray[np.uint8]


class ImageClassifier(nn.Module):
    """A plain stack of 3x3 convolutions, each of the first halving the image, then the mean over all pixels.

    Args:
        width: channels of every layer.
        layers: convolutions without a stride, after those that halve the image.
        halvings: convolutions of stride 2.
        classes: number of classes.
    """

    def __init__(self, width: int = 32, layers: int = 4, halvings: int = 1, classes: int = CLASSES) -> None:
        super().__init__()
        strides = [2] * halvings + [1] * layers
        self.layers = nn.ModuleList(
            nn.Conv2d(width if i else 3, width, kernel_size=3, stride=stride, padding=1)
            for i, stride in enumerate(strides)
        )
        self.last = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [N, 3, S, S] to logits [N, classes]."""
        x = images
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped


class Augment:
    """Cuts a random square out of an image, scales it to `crop` pixels, may flip it, and changes its brightness.

    Args:
        crop: height and width of what comes out, in pixels; what is cut out is up to twice as wide.
    """

    def __init__(self, crop: int) -> None:
        self.crop = crop

    def __call__(self, image: Pixels, random: np.random.Generator) -> Tensor:
        """Return an image [S, S, 3] as a tensor [3, crop, crop] (float32, about -1 to 1), by what `random` draws."""
        size = len(image)
        side = random.integers(min(self.crop, size), min(2 * self.crop, size), endpoint=True)
        left, top = random.integers(0, size - side, 2, endpoint=True)
        cut = Image.fromarray(image[top : top + side, left : left + side])
        scaled = cut.resize((self.crop, self.crop), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            scaled = scaled.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = np.asarray(scaled, dtype=np.float32) * np.float32(random.uniform(0.8, 1.2) / 127.5) - np.float32(1)
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


class Images(Dataset[tuple[Tensor, int]]):
    """RGB images of ten classes, read and augmented sample by sample.

    The augmentation of sample `i` depends on `seed` and `i` alone, and both forms hold the same pixels, so a sample is
    the same in every worker, in every order and in every variant.

    Args:
        length: number of images.
        image_size: their height and width in pixels.
        crop: height and width of a sample.
        stored: `png` reads and decodes a file per sample; `array` takes the pixels from one memory-mapped array in
            which the files were decoded beforehand.
        folder: where the files lie, or are written if they do not; a relative one is below the working folder.
        seed: a non-negative integer; another seed augments otherwise. The files are the same for all.

    Raises:
        TrainError: `stored` is neither, or the files cannot be written.
    """

    def __init__(
        self,
        length: int,
        image_size: int,
        crop: int,
        stored: str = "png",
        folder: str = FOLDER,
        seed: int = 0,
    ) -> None:
        if stored not in ("png", "array"):
            raise TrainError(f"images cannot be stored as '{stored}'", where="stored", expected="png or array")
        self.length = length
        self.stored = stored
        self.seed = seed
        self.transform = Augment(crop)
        self.files = image_files(length, image_size, Path(folder).absolute())

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return image [3, crop, crop] (float32) and class of sample `index`."""
        image = self.transform(self._image(index), np.random.default_rng([self.seed, index]))
        return image, index % CLASSES

    def _image(self, index: int) -> Pixels:
        if self.stored == "array":
            pixels: Pixels = self._array[index]
            return pixels
        with Image.open(self.files / png_name(index)) as file:
            return np.asarray(file)

    @cached_property
    def _array(self) -> Pixels:
        array: Pixels = np.load(self.files / _ARRAY, mmap_mode="r")
        return array

    def __getstate__(self) -> dict[str, Any]:
        """Without the array: a worker process maps the file itself instead of being sent all of it."""
        return {name: value for name, value in vars(self).items() if name != "_array"}


def png_name(index: int) -> str:
    """File name of image `index`."""
    return f"{index:06d}.png"


def image_files(length: int, size: int, folder: Path) -> Path:
    """The folder below `folder` with `length` images of `size` pixels, as PNG files and as one array.

    They are written if they are missing: to a temporary folder that is renamed when complete, so concurrent processes
    do not disturb each other.

    Raises:
        TrainError: they cannot be written.
    """
    files = folder / f"{length}x{size}-v{_VERSION}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (files / _DONE).exists():
            _write_once(files, lambda target: _write_images(target, length, size))
    except OSError as error:
        raise TrainError(
            f"images cannot be written ({error})",
            where=folder,
            next_step=f"free space, remove what is left of {files.name}, or set data.dataset.folder",
        ) from error
    return files


def _write_once(files: Path, write: Callable[[Path], None]) -> None:
    with scratch_folder(files.parent) as scratch:
        folder = Path(scratch, files.name)
        folder.mkdir()
        write(folder)
        (folder / _DONE).touch()
        try:
            folder.rename(files)
        except OSError:
            if not (files / _DONE).exists():
                raise  # another error than a faster process's folder


def _write_images(folder: Path, length: int, size: int) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": (length, size, size, 3)}
    # Written and not mapped: a full disk is an error of a write, but kills a process that stores into a mapped file.
    with (folder / _ARRAY).open("wb") as array:
        np.lib.format.write_array_header_1_0(array, header)
        for index in range(length):
            pixels = made_image(index, size)
            array.write(pixels.tobytes())
            Image.fromarray(pixels).save(folder / png_name(index), compress_level=1)


def made_image(index: int, size: int) -> Pixels:
    """Image `index` [size, size, 3] (uint8): two gratings whose wavelengths go with the number, and noise."""
    random = np.random.default_rng([_VERSION, index])
    y, x = np.mgrid[0:size, 0:size].astype(np.float32) / np.float32(size)
    waves = 2 + index % CLASSES
    angle = random.uniform(0, np.pi)
    phase = random.uniform(0, 2 * np.pi, 3).astype(np.float32)
    grating = 2 * np.pi * waves * (x * np.cos(angle) + y * np.sin(angle))
    slow = np.pi * (x * np.sin(angle) - y * np.cos(angle))
    shades = 128 + 60 * np.sin(grating[..., None] + phase) + 40 * np.sin(slow[..., None] + 2 * phase)
    noisy = shades + _NOISE * random.standard_normal((size, size, 3), dtype=np.float32)
    pixels: Pixels = noisy.clip(0, 255).astype(np.uint8)
    return pixels
