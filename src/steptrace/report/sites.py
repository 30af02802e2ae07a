"""Places in the code where the host waits for the device, as a page shows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from steptrace.batch_copy import BATCH_COPY, is_batch_copy


class Located(Protocol):
    """Whatever names a line of the program."""

    @property
    def file(self) -> str | None: ...
    @property
    def line(self) -> int | None: ...


class Priced(Protocol):
    """A sync site with its figures per step."""

    @property
    def count_per_step(self) -> float | None: ...
    @property
    def blocked_ns_per_step(self) -> float | None: ...
    @property
    def exposed_idle_ns_per_step(self) -> float | None: ...


_Priced = TypeVar("_Priced", bound=Priced)


def place(at: Located) -> str | None:
    """`file:line` with the last two folders of a long path."""
    if at.file is None:
        return None
    parts = Path(at.file).parts
    short = at.file if len(parts) <= 3 else "…/" + "/".join(parts[-3:])
    return short if at.line is None else f"{short}:{at.line}"


def unplaced(site: object) -> str:
    """What stands in for a sync's place that has no line of the program."""
    known = {name: getattr(site, name, None) for name in ("file", "label", "kind")}
    return BATCH_COPY if is_batch_copy(known) else "line unknown"


def rank_sites(sites: Sequence[_Priced]) -> list[_Priced]:
    """The costliest first: by exposed idle, then blocked time, then count."""
    return sorted(
        sites,
        key=lambda s: (-(s.exposed_idle_ns_per_step or 0), -(s.blocked_ns_per_step or 0), -(s.count_per_step or 0)),
    )


@dataclass(frozen=True)
class Site:
    """One place in the code where the host waits for the device."""

    file: str | None
    line: int | None
    function: str | None
    op: str | None
    label: str | None
    kind: str | None
    phase: str | None
    code: str | None
    count_per_step: float | None
    blocked_ns_per_step: float | None
    exposed_idle_ns_per_step: float | None
    saved_ns_per_step: float | None
    ceiling_ns_per_step: float | None


@dataclass(frozen=True)
class Unknown(Site):
    """One place of which a prediction cannot say whether the host waits there."""

    reason: str | None


@dataclass(frozen=True)
class Agreement(Site):
    """One place with its syncs per step as predicted, as warned of by PyTorch and as traced; `why` if they differ."""

    predicted: float
    warned: float | None
    traced: float | None
    why: str | None
