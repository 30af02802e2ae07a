"""What a prediction holds: sites, what could not be judged, and operators per section."""

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TypeVar

from steptrace.predict.attribution import trace_file_name


@dataclass(frozen=True)
class Site:
    """One place in a program that makes the host wait.

    `file` and `line` are the innermost frame that is neither PyTorch's nor the pipeline's own, of the forward pass
    also for a sync in the backward pass (`phase`). None means that only such frames were on the stack. `label` is the
    innermost `record_function` label then running; `count` is over everything that was predicted.
    """

    kind: str
    op: str
    file: str | None
    line: int | None
    function: str | None
    code: str | None
    label: str | None
    phase: str
    count: int
    reason: str


@dataclass(frozen=True)
class Unknown:
    """An operation whose syncs could not be judged."""

    op: str
    file: str | None
    line: int | None
    function: str | None
    code: str | None
    label: str | None
    phase: str
    count: int
    reason: str


class Syncs(Protocol):
    """What `predict_syncs` yields; it fills while the program runs."""

    @property
    def total(self) -> int:
        """Predicted syncs so far."""

    @property
    def sites(self) -> list[Site]:
        """Where they are, in the order of their first occurrence."""

    @property
    def unknown(self) -> list[Unknown]:
        """What could not be judged: the total may be higher by these."""

    def reset(self) -> None:
        """Forget what has been counted, as after a warm-up step."""

    def outside_optimizer(self) -> AbstractContextManager[None]:
        """To be entered while a closure of the program runs inside an optimizer's step, of which it is no part."""

    @property
    def operators(self) -> dict[str, int]:
        """Operators on the device that do work (not mere views), per `record_function` label; nested ones in both."""

    @property
    def operator_total(self) -> int:
        """The same over everything, labelled or not. A proxy for the number of kernel launches."""


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
    def of(cls, syncs: Syncs) -> "Prediction":
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
