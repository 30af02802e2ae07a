"""Images per second of vision models, as their projects publish them, for estimates to be held to.

    python bench/published_throughputs.py --out FOLDER [--at-most N]

No constant was fitted to these steps.

- microsoft/Swin-Transformer (README.md at commit 005e8efa; `--throughput --batch-size 64 --amp-opt-level O0` of its
  get_started.md): inference of 64 images in float32 on a V100.
- facebookresearch/hiera (README.md at commit 1a7b0538): inference in float16 on an A100, attention unfused. The README
  does not say which A100, how many images and how they are cast. They are taken as 80 GB, and as in the benchmark of
  the same author (facebookresearch/ToMe, tome/utils.py at commit 207459ad): 64 images, under autocast.

Models are timm's (pip install timm). Each program is followed once, to a file in FOLDER.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch

import followed_programs

BATCH: Final = 64


class Program(NamedTuple):
    """A model of timm, the height and width of its images, and their type; autocast computes in float16."""

    model: str
    size: int
    dtype: str

    @property
    def file(self) -> str:
        """The name of the file that holds its operators."""
        return f"{'-'.join(map(str, self))}.json.gz"


class Published(NamedTuple):
    """A step that was published: its program, its project, the GPU and milliseconds."""

    program: Program
    source: str
    gpu: str
    ms: float

    @property
    def kind(self) -> str:
        """The row of the table that it belongs to."""
        return f"{self.source}, inference in {self.program.dtype}, one {self.gpu}"


#: Images per second on a V100, by model and size of images.
SWIN: Final[Mapping[tuple[str, int], float]] = {
    ("swin_tiny_patch4_window7_224", 224): 755, ("swin_small_patch4_window7_224", 224): 437,
    ("swin_base_patch4_window7_224", 224): 278, ("swin_base_patch4_window12_384", 384): 85,
    ("swin_large_patch4_window7_224", 224): 141, ("swin_large_patch4_window12_384", 384): 42,
    ("resmlp_24_224", 224): 715,
}  # fmt: skip
#: The same on an A100.
HIERA: Final[Mapping[tuple[str, int], float]] = {
    ("hiera_tiny_224", 224): 2758, ("hiera_small_224", 224): 2211, ("hiera_base_224", 224): 1556,
    ("hiera_base_plus_224", 224): 1247, ("hiera_large_224", 224): 531, ("hiera_huge_224", 224): 274,
}  # fmt: skip
STEPS: Final = [
    Published(Program(model, size, dtype), source, gpu, 1e3 * BATCH / rate)
    for source, dtype, gpu, rates in (
        ("Swin", "float32", "V100-SXM2", SWIN),
        ("Hiera", "float16", "A100-80", HIERA),
    )
    for (model, size), rate in rates.items()
]


def step_of(program: Program) -> Callable[[], None]:
    """What is measured: ends with a sync."""
    import timm

    model = timm.create_model(program.model, pretrained=False).eval().cuda()
    images = torch.empty(BATCH, 3, program.size, program.size, device="cuda", dtype=getattr(torch, program.dtype))

    def infer() -> None:
        with torch.no_grad():
            model(images)
        torch.cuda.synchronize()

    return infer


def follow(program: Program) -> dict[str, Any]:
    """Follow a program's second step: what the probe would say of it."""
    from steptrace.predict import predict_syncs

    os.environ["TIMM_FUSED_ATTN"] = "0"
    in_half = program.dtype == "float16"
    # One context of autocast for all steps, as theirs: weights are cast once.
    with predict_syncs() as syncs, torch.autocast("cuda", torch.float16, enabled=in_half):
        return followed_programs.last_step(syncs, step_of(program), 2)


if __name__ == "__main__":
    followed_programs.main(__doc__, [step.program for step in STEPS], follow)
