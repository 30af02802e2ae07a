"""What a prediction holds: sites, what could not be judged, and operators per section."""

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from steptrace.train.op_recorder import trace_file_name

if TYPE_CHECKING:
    from steptrace.predict.recorder import Syncs


@dataclass(frozen=True)
class Place:
    """One place in a program, of an operation in it, and how often that was called over everything that was predicted.

    `file` and `line` are the innermost frame that is neither PyTorch's nor the pipeline's own, of the forward pass
    also for what happens in the backward pass (`phase`). None means that only such frames were on the stack. `label` is
    the innermost `record_function` label then running.
    """

    op: str
    file: str | None
    line: int | None
    function: str | None
    code: str | None
    label: str | None
    phase: str
    count: int
    reason: str


class Unknown(Place):
    """An operation whose syncs could not be judged."""


@dataclass(frozen=True)
class Site(Place):
    """One that makes the host wait, `count` times, for a copy, a stream, an event or the device (`kind`)."""

    kind: str


_Place = TypeVar("_Place", Site, Unknown)


def _named(place: _Place) -> _Place:
    return place if place.file is None else replace(place, file=trace_file_name(place.file))


@dataclass(frozen=True)
class Prediction:
    """The syncs of one training step, frozen. `batch_size` is what a config was followed with, None for a function."""

    total: int
    sites: tuple[Site, ...]
    unknown: tuple[Unknown, ...]
    operators_per_section: dict[str, int]
    operators: int
    batch_size: int | None = None

    @classmethod
    def of(cls, syncs: "Syncs") -> "Prediction":
        """Freeze what has been predicted so far, naming files as a trace of the program does."""
        return cls(
            total=syncs.total,
            sites=tuple(_named(site) for site in syncs.sites),
            unknown=tuple(_named(unknown) for unknown in syncs.unknown),
            operators_per_section=dict(syncs.operators),
            operators=syncs.operator_total,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, as prediction.json holds it."""
        return asdict(self)
