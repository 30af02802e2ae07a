"""The badge beside a title where times are not those of a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from steptrace.documents.comparison import Comparison
from steptrace.documents.run import is_simulated
from steptrace.findings.estimated import estimated_gpus, leads
from steptrace.format import enumeration


@dataclass(frozen=True)
class DeviceNote:
    """What to know of the device before anything else, in a few words."""

    words: str
    tone: str


SIMULATED: Final = DeviceNote("simulated GPU: times mean nothing", "bad")
NO_GPU: Final = DeviceNote("no GPU: CPU timings", "warning")


def device_of_study(study: Comparison) -> DeviceNote | None:
    """The note on whose figures lead; None for a GPU's, and where no run recorded its machine."""
    simulated = study.environment is not None and is_simulated(study.environment.gpu)
    if leads(study):
        device = "simulated GPU, nothing measured" if simulated else "no GPU"
        return DeviceNote(f"{device}: estimated for {enumeration(estimated_gpus(study))}", "warning")
    if study.environment is None:
        return None
    if simulated:
        return SIMULATED
    return NO_GPU if study.environment.gpu is None else None


def device_of_traces(gpus: Sequence[str | None], *, has_gpu: bool) -> DeviceNote | None:
    """The note on traces with these names of GPUs; `has_gpu`: whether any of them holds GPU work."""
    if any(map(is_simulated, gpus)):
        return SIMULATED
    return None if has_gpu else NO_GPU
