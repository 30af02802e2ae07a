"""Figures of syncs: where the host waits for the GPU, for how long, and what removing them saves at most."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from steptrace.documents.base import Document, InRuns, column, field, key
from steptrace.format import place


class Place(Document, frozen=True):
    """A place in the program."""

    file: Annotated[str | None, key("Line", "File of the first frame that is neither PyTorch's nor steptrace's.")]
    line: Annotated[int | None, key("", "Line in it; of backward work that of the forward operator.", local=True)]
    function: Annotated[str | None, key("", "Function that the line stands in.")]
    op: Annotated[str | None, key("Operator", "Innermost operator.")]
    label: Annotated[str | None, key("Label", "Innermost `record_function` label.")]
    phase: Annotated[str | None, key("Phase", "Part of the step.")]
    code: Annotated[str | None, field("Text of the line.", kind="first")]


class Site(Place, frozen=True, kw_only=True):
    """Syncs of one kind at one place, traced or predicted."""

    kind: Annotated[str | None, key("Kind", "The call that waits, or `d2h_copy`, `h2d_copy`.")]
    count_per_step: Annotated[float | None, column("Per step", "Syncs per step.", kind="rate")]

    program_file: Annotated[
        str | None, key("", "Of a sync in a library: file of the program's line that leads there.", local=True)
    ] = None
    program_line: Annotated[int | None, key("", "That line.", local=True)] = None

    @property
    def program(self) -> tuple[str, int | None] | None:
        """File and line of the program that lead to a sync in a library; None without such a line."""
        return None if self.program_file is None else (self.program_file, self.program_line)


class SyncSite(Site, frozen=True, kw_only=True):
    """The counted syncs of one kind at one place.

    A sync is a host operation after which the host goes on only once queued GPU work is complete.
    """

    count: Annotated[int, column("Syncs", "How many.", kind="total")]
    blocked_ns: Annotated[
        int, column("Host blocked", "Host time in the waiting calls; the GPU may be busy meanwhile.", kind="total")
    ]
    exposed_idle_ns: Annotated[
        int | None,
        column(
            "GPU idle until the next launch",
            "GPU idle time from a sync's start to the first work launched after it; without any the sync costs "
            "nothing.",
            kind="total",
        ),
    ]
    ceiling_ns: Annotated[
        int | None,
        column(
            "Saves at most",
            "Upper bound of what removing these syncs saves: the time that they block the host, but not more than "
            "the GPU's idle time that can close up. Less than the idle time until the next work where the host needs "
            "that time anyway, to launch it.",
            kind="total",
        ),
    ]
    runs: InRuns = msgspec.UNSET


class PredictedSite(Site, frozen=True, kw_only=True):
    """Predicted syncs at one place."""

    pinned: Annotated[
        bool | None, field("Of a copy to the device: whether the host's memory is pinned.", kind="first")
    ] = None


class PredictedBranch(Document, frozen=True):
    """A line at which the program branches on a step counter, such as `if step % 10 == 0`."""

    file: Annotated[str, field("Its file.")]
    line: Annotated[int, field("Its line.")]
    every: Annotated[int, field("After so many steps it branches in the same way again.")]

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}"


def predicted_branches(prediction: Mapping[str, Any]) -> tuple[PredictedBranch, ...]:
    """The branches of prediction.json."""
    return tuple(PredictedBranch(**branch) for branch in prediction.get("branches") or ())


def predicted_site(site: Mapping[str, Any]) -> PredictedSite:
    """A site of prediction.json."""
    names = [name for name in PredictedSite.__struct_fields__ if name != "count_per_step"]
    return PredictedSite(**{name: site.get(name) for name in names}, count_per_step=site.get("count"))


#: What a page and a message call the one place without a line of the program that everybody can name: the training loop
#: is the pipeline's, so no frame of the program is on the stack where a batch goes to the device; its labels tell.
BATCH_COPY: Final = "the loop's copy of the batch"
#: The labels of the loop: of the whole part, and of the copy alone.
_LABELS: Final = ("data", "copy data")


def is_batch_copy(file: str | None, label: str | None, kind: str | None) -> bool:
    """Whether a sync is that copy: a copy to the device under the loop's label, without a line of the program."""
    return file is None and label in _LABELS and kind == "h2d_copy"


def place_of(site: Site) -> str:
    """A site's line, of one in a library the program's; its label without a line."""
    if site.program is not None:
        return f"{place(*site.program)} (in {site.file}:{site.line})"
    if site.file is not None:
        return place(site.file, site.line, site.function)
    if is_batch_copy(site.file, site.label, site.kind):
        return BATCH_COPY
    return f"a place labelled '{site.label}'" if site.label else "a place without a source line"


class Syncs(Document, frozen=True):
    """Syncs of a trace: host operations that wait for queued GPU work."""

    count: Annotated[int, column("Syncs", "Counted ones: on training threads, in steps.", kind="total")]
    per_step: Annotated[
        float | None,
        column("Syncs per step", "Mean per step; not measured where nothing could have been seen.", kind="rate"),
    ]
    by_step: Annotated[tuple[int, ...] | None, field("Each step's count.", kind="first")]
    blocked_ns: Annotated[int, column("Host blocked, in all", "Time the host was blocked in all steps.", kind="total")]
    exposed_idle_ns: Annotated[
        int | None,
        column("GPU idle until the next launch, in all", "GPU idle time exposed, each instant once.", kind="total"),
    ]
    ceiling_ns: Annotated[
        int | None,
        column("Saves at most, in all", "Upper bound of what all steps save without any of them.", kind="sum"),
    ]
    by_kind: Annotated[dict[str, int], field("Counts by kind.", kind="total")]
    outside_steps: Annotated[
        int,
        column(
            "Outside the steps", "Not counted: outside the steps, such as the profiler's own at its end.", kind="sum"
        ),
    ]
    sites: Annotated[tuple[SyncSite, ...], field("By place, the most blocking first.")]
