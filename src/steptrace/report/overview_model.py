"""What an overview shows, as plain data, and how it is read from comparison.json and summary.json."""

from dataclasses import dataclass
from typing import Any, Final

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

Json = Any


@dataclass(frozen=True)
class Operator:
    """One operator by name, with its own time in ns on the host and (None without one) on the GPU.

    Without a name it is the GPU work that no operator launched.
    """

    name: str | None
    calls: int | None
    host_self_ns: int | None
    device_self_ns: int | None
    share: float


@dataclass(frozen=True)
class Placement:
    """Operators a step (of the whole trace without steps) by where they ran, and their time there in ns."""

    total: float
    device: float
    host: float
    view: float
    device_ns: float | None
    host_ns: float

    @property
    def device_share(self) -> float | None:
        """Of the operators that do work, those on the GPU."""
        working = self.device + self.host
        return self.device / working if working else None


@dataclass(frozen=True)
class Precision:
    """Shares of the kernel time by number format; of the part that suits tensor cores, what ran there."""

    kernel_share: dict[str, float]
    tf32_share: float
    eligible_share: float
    tensor_core_share: float | None
    tensor_core_unknown_share: float | None


@dataclass(frozen=True)
class Overview:
    """The first look at a variant or a trace; None is not measured.

    `parts` are labels with their ms and add up to `step_ms`, a profiled step (without steps, to the whole trace).
    """

    step_ms: float | None = None
    parts: tuple[tuple[str, float], ...] = ()
    device_compute_share: float | None = None
    operators: tuple[Operator, ...] = ()
    placement: Placement | None = None
    precision: Precision | None = None


def load_overview(raw: Json) -> Overview:
    """The overview of a variant's entry in comparison.json, empty where a comparison has none."""
    seen, precision = raw.get("overview") or {}, raw.get("precision")
    return Overview(
        step_ms=seen.get("step_ms"),
        parts=tuple((seen.get("parts_ms") or {}).items()),
        device_compute_share=seen.get("device_compute_share"),
        operators=tuple(Operator(**item) for item in seen.get("operators") or ()),
        placement=_placement(raw.get("placement")),
        precision=None if precision is None else Precision(**precision),
    )


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


def _placement(raw: Json | None) -> Placement | None:
    if not raw or not raw["ops_total"]:
        return None
    return Placement(
        total=raw["ops_total"],
        device=raw["ops_device"],
        host=raw["ops_host"],
        view=raw["ops_view"],
        device_ns=raw["device_ns"],
        host_ns=raw["host_ns"],
    )
