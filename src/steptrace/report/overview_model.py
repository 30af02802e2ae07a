"""What an overview shows, beyond what the documents say."""

from typing import Final

from steptrace.documents import summary
from steptrace.documents.comparison import PlacementOfVariant, PrecisionOfVariant

#: The number formats in the order of a table, and their names there.
FORMAT_NAMES: Final = {
    "bits8": "8-bit or less",
    "bits16": "16-bit",
    "bits32": "32-bit",
    "bits64": "64-bit",
    "integer": "integer",
    "unknown": "unknown",
}
_NS_PER_MS: Final = 1e6


def trace_parts(overview: summary.Overview | None) -> tuple[tuple[str, float], ...]:
    """The parts of a trace's step in ms, or without steps those of the whole trace."""
    if overview is None:
        return ()
    scale = (overview.steps or 1) * _NS_PER_MS
    return tuple((name, ns / scale) for name, ns in overview.parts_ns.items())


def device_share(placement: summary.Placement | PlacementOfVariant) -> float | None:
    """Of the operators that do work, those on the GPU."""
    on_device, on_host = placement.ops_device or 0, placement.ops_host or 0
    return on_device / (on_device + on_host) if on_device + on_host else None


def precision_shares(precision: summary.Precision | None) -> PrecisionOfVariant | None:
    """A trace's number formats as shares of its kernel time; None without any."""
    total = sum(precision.kernel_ns.values()) if precision is not None else 0
    if precision is None or not total:
        return None
    eligible = precision.tensor_core_eligible_ns
    return PrecisionOfVariant(
        kernel_share={name: ns / total for name, ns in precision.kernel_ns.items()},
        tf32_share=precision.tf32_ns / total,
        eligible_share=eligible / total,
        tensor_core_share=precision.tensor_core_ns / eligible if eligible else None,
        tensor_core_unknown_share=precision.tensor_core_unknown_ns / eligible if eligible else None,
    )
