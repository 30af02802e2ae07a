"""What the overviews of a study and of a trace have in common, and the badge where times are not those of a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from steptrace.documents.comparison import Comparison, PlacementOfVariant, PrecisionOfVariant
from steptrace.documents.overview import Placement
from steptrace.documents.run import is_simulated
from steptrace.report.draw import bars as draw
from steptrace.report.draw.bars import Part
from steptrace.report.draw.svg import InlineSvg


@dataclass(frozen=True)
class DeviceNote:
    """What to know of the device before anything else, in a few words."""

    words: str
    tone: str


SIMULATED: Final = DeviceNote("simulated GPU: times mean nothing", "bad")
NO_GPU: Final = DeviceNote("no GPU: CPU timings", "warning")


def device_of_study(study: Comparison) -> DeviceNote | None:
    """The note on a study's machine; None for a GPU, and where no run recorded its machine."""
    if study.environment is None:
        return None
    if study.on_simulated_gpu:
        return SIMULATED
    return NO_GPU if study.environment.gpu is None else None


def device_of_traces(gpus: Sequence[str | None], *, has_gpu: bool) -> DeviceNote | None:
    """The note on traces with these names of GPUs; `has_gpu`: whether any of them holds GPU work."""
    if any(map(is_simulated, gpus)):
        return SIMULATED
    return None if has_gpu else NO_GPU


#: The number formats in the order of a table, and their names there.
FORMAT_NAMES: Final = {
    "bits8": "8-bit or less",
    "bits16": "16-bit",
    "bits32": "32-bit",
    "bits64": "64-bit",
    "integer": "integer",
    "unknown": "unknown",
}
#: A number format with less of the kernel time gets no column.
_SMALLEST_SHARE: Final = 0.0005
#: Before the names of an overview's parts where charts and tables know them.
_PREFIX: Final = "step_"


def device_share(placement: Placement | PlacementOfVariant) -> float | None:
    """Of the operators that do work, those on the GPU."""
    on_device, on_host = placement.ops_device or 0, placement.ops_host or 0
    return on_device / (on_device + on_host) if on_device + on_host else None


def formats_shown(found: Sequence[PrecisionOfVariant | None]) -> list[str]:
    """The number formats worth a column: 16, 32 bits and unknown always, the others where any kernel has them."""
    shares = [pair for item in found if item is not None for pair in item.kernel_share.items()]
    used = {name for name, share in shares if share >= _SMALLEST_SHARE}
    return [name for name in FORMAT_NAMES if name in ("bits16", "bits32", "unknown") or name in used]


def parts_chart(parts: Sequence[tuple[str, float]], title: str) -> InlineSvg | None:
    """One bar of a trace's parts; None without any."""
    return draw.stacked_bars([(title, labelled(parts))], "ms") if parts else None


def labelled(parts: Sequence[tuple[str, float]]) -> tuple[Part, ...]:
    """Parts under labels of their own: some of these names mean a cause of idle time elsewhere on the page."""
    known = draw.PART_COLOURS
    return tuple(Part(label if (label := _PREFIX + name) in known else name, ms) for name, ms in parts)
