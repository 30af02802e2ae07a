"""Places in the code where the host waits for the device, as a page shows them."""

from dataclasses import dataclass
from pathlib import Path

from steptrace.batch_copy import BATCH_COPY, is_batch_copy


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

    @property
    def place(self) -> str | None:
        """`file:line` with the last two folders of a long path."""
        if self.file is None:
            return None
        parts = Path(self.file).parts
        short = self.file if len(parts) <= 3 else "…/" + "/".join(parts[-3:])
        return short if self.line is None else f"{short}:{self.line}"

    @property
    def without_line(self) -> str:
        """What stands in for a place that has no line of the program."""
        return BATCH_COPY if is_batch_copy(self) else "line unknown"


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
