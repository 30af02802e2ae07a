"""The badge beside a page's title where its times are not those of a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from steptrace.documents.comparison import Comparison
from steptrace.documents.run import is_simulated


@dataclass(frozen=True)
class DeviceNote:
    """What to know of the device before anything else, in a few words."""

    words: str
    tone: str


SIMULATED: Final = DeviceNote("simulated GPU: times mean nothing", "bad")
NO_GPU: Final = DeviceNote("no GPU: times of a CPU", "warning")


def of_study(study: Comparison) -> DeviceNote | None:
    """The note on a study's machine; None for a GPU, and where no run recorded its machine."""
    if study.environment is None:
        return None
    if study.on_simulated_gpu:
        return SIMULATED
    return NO_GPU if study.environment.gpu is None else None


def of_traces(gpus: Sequence[str | None], *, has_gpu: bool) -> DeviceNote | None:
    """The note on traces with these names of GPUs; `has_gpu`: whether any of them holds GPU work."""
    if any(map(is_simulated, gpus)):
        return SIMULATED
    return None if has_gpu else NO_GPU
