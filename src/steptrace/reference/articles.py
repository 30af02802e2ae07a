"""What the two articles report, as facts to be held against: figures in milliseconds, and what they ran on."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Setting:
    """What an article measured on, and how."""

    article: str
    gpu: str
    torch: str
    how: str


MASKED_SETTING: Final = Setting(
    article="masked segmentation loss (August 2023)",
    gpu="A10G",
    torch="2.0",
    how="three profiled steps, as the profiler sees the host; corrected: several hundred unprofiled steps",
)
GIOU_SETTING: Final = Setting(
    article="GIoU over a varying number of boxes (August 2024)",
    gpu="L4",
    torch="2.4",
    how="mean of ten profiled steps, forward and loss only, with an explicit synchronisation after each section",
)

#: Profiled step of the masked loss's first and last stage; the two between gained nothing.
MASKED_PROFILED_MS: Final = {"boolean_mask": 1300.0, "ignore_index": 5.4}
#: The same of the last stage in the corrected text, unprofiled, and what the article calls the gain then.
MASKED_UNPROFILED_MS: Final = {"ignore_index": 330.0}
MASKED_GAIN: Final = {"profiled": 240.0, "unprofiled": 4.0}
#: How busy the GPU looked before any fix, as commonly sampled.
MASKED_SAMPLED_UTILISATION_PCT: Final = 90.0

#: variant -> section -> milliseconds.
GIOU_SECTIONS_MS: Final = {
    "loop": {"copy data": 28.8, "forward": 119.2, "calc loss": 938.1},
    "concat": {"copy data": 52.2, "forward": 118.7, "calc loss": 25.4},
    "padding": {"copy data": 5.71, "forward": 131.5, "calc loss": 1.84},
    "kernel": {"copy data": 5.69, "forward": 132.7, "calc loss": 0.629},
    "kernel_conditional": {"copy data": 5.70, "forward": 131.9, "calc loss": 0.623},
}
#: What padding costs at most, as a share of the GPU's memory in use.
GIOU_PADDING_MEMORY: Final = 0.01
