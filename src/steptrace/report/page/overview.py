"""What the overviews of a study and of a trace have in common."""

from collections.abc import Sequence
from typing import Final

from steptrace.documents import summary
from steptrace.documents.comparison import PlacementOfVariant, PrecisionOfVariant
from steptrace.report.draw import bars as draw
from steptrace.report.draw.bars import Part
from steptrace.report.draw.svg import InlineSvg

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


def device_share(placement: summary.Placement | PlacementOfVariant) -> float | None:
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
