"""Figures of syncs: where the host waits for the GPU, for how long, and what removing them saves at most."""

from typing import Annotated, Final

import msgspec

from steptrace.documents.base import Document, InRuns, column, described, field, key, place_key, reference
from steptrace.format import count as fmt_count
from steptrace.format import place, plural


class Place(Document, frozen=True):
    """A place in the program."""

    file: Annotated[str | None, place_key("Line", "File of the first frame that is neither PyTorch's nor steptrace's.")]
    line: Annotated[int | None, key("", "Line in it; for backward work the line of the forward operator.", local=True)]
    function: Annotated[str | None, key("", "Function that the line stands in.")]
    op: Annotated[str | None, key("Operator", "Innermost operator.")]
    label: Annotated[str | None, key("Label", "Innermost `record_function` label.")]
    phase: Annotated[str | None, key("Phase", "Part of the step.")]
    code: Annotated[str | None, field("Text of the line.", kind="first")]


class SiteRow(Place, frozen=True, kw_only=True):
    """Syncs of one kind at one place, traced or predicted."""

    kind: Annotated[str | None, key("Kind", "The call that waits, or `d2h_copy`, `h2d_copy`.")]
    count_per_step: Annotated[
        float | None, column("Per step", "Syncs per step, a mean over the steps that were looked at.", kind="rate")
    ]

    program_file: Annotated[
        str | None, key("", "Of a sync in a library: file of the program's line that leads there.", local=True)
    ] = None
    program_line: Annotated[int | None, key("", "That line.", local=True)] = None

    in_steps: Annotated[
        int | None, field("In how many of these steps it happens; null where steps are not told apart.", kind="mean")
    ] = None
    of_steps: Annotated[int | None, field("How many steps were looked at.", kind="mean")] = None
    every: Annotated[
        int | None, field("Steps from one in which it happens to the next, where that is regular.", kind="fact")
    ] = None

    @property
    def how_often(self) -> str:
        """How often it happens: "2" per step, "1 every 2 steps", "once in 4 steps"; empty where that is not known."""
        if self.count_per_step is None:
            return ""
        return often(self.count_per_step, self.in_steps, self.of_steps, self.every)

    @property
    def how_often_in_words(self) -> str:
        """The same within a sentence: "2 per step", "once in 4 steps"."""
        return f"{self.how_often} per step" if self.how_often[-1:].isdecimal() else self.how_often

    def counted(self, noun: str) -> str:
        """The same with what happens: "2 d2h copies" for those of each step, "d2h copy, once in 4 steps"."""
        number = self.how_often
        return f"{number} {noun}" if number[-1:].isdecimal() else f"{noun}, {number}"

    @property
    def program(self) -> tuple[str, int | None] | None:
        """File and line of the program that lead to a sync in a library; None without such a line."""
        return None if self.program_file is None else (self.program_file, self.program_line)


@described(
    """The counted syncs of one kind at one place.

    A sync is a host operation after which the host goes on only once queued GPU work is complete.
    """
)
class SyncSite(SiteRow, frozen=True, kw_only=True):
    count: Annotated[int, column("Syncs", "How many.", kind="total", plain=True)]
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
    per_step_of_all_runs: Annotated[
        float | None,
        field("Syncs per step, where a run without such a sync counts as 0; null where not looked at.", kind="total"),
    ] = None
    runs: InRuns = msgspec.UNSET


class SyncCost(Document, frozen=True, kw_only=True):
    """One sync of a trace, with its cost and its place in the program (table `sync_costs`)."""

    ts: Annotated[int, field("Start of its first call.")]
    dur: Annotated[int, field("From the start of its first call to the end of its last.")]
    thread: Annotated[int, reference("threads")]
    kind: Annotated[str, field("`d2h_copy`, `h2d_copy`, or the name of the waiting call.")]
    blocked_ns: Annotated[int, field("Host time within its calls; the GPU may be busy meanwhile.")]
    launch: Annotated[int, reference("launches", "its first call.")]
    op_row: Annotated[int | None, reference("ops", "the innermost operator around it.")]
    step: Annotated[int | None, reference("steps")]
    counted: Annotated[bool, field("Whether it counts: on a training thread, and in a step if the trace has any.")]
    exposed_idle_ns: Annotated[
        int | None, field("GPU idle time from its start to the first GPU work launched after its end.")
    ]
    exposed_until: Annotated[
        int | None, field("Trace time in ns at which that work started, or at which the last GPU work ended.")
    ]
    file: Annotated[str | None, field("File of the first frame that is neither PyTorch's nor steptrace's.")]
    line: Annotated[int | None, field("Line in it; for backward work the line of the forward operator.")]
    function: Annotated[str | None, field("Function that the line stands in.")]
    op: Annotated[str | None, field("Innermost operator.")]
    label: Annotated[str | None, field("Innermost `record_function` label.")]
    phase: Annotated[str | None, field("Part of the step.")]
    code: Annotated[str | None, field("Text of the line.")]
    program_file: Annotated[str | None, field("Of a sync in a library: file of the program's line that leads there.")]
    program_line: Annotated[int | None, field("That line.")]


@described("Predicted syncs at one place.")
class PredictedSite(SiteRow, frozen=True, kw_only=True):
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


class AwaitedBranch(Document, frozen=True):
    """A line at which the program waits for its step counter, and that was not taken in the followed steps."""

    file: Annotated[str, field("Its file.")]
    line: Annotated[int, field("Its line.")]
    awaits: Annotated[
        str,
        field(
            "By what: `number` (`step == 1000`), `list` of numbers (`step in milestones`), `iterator` (`next(flags)`)."
        ),
    ]
    in_steps: Annotated[
        int | None, field("Steps from the last followed one to the one that takes it; null where that is not known.")
    ] = None

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}"


def often(per_step: float, in_steps: int | None, of_steps: int | None, every: int | None) -> str:
    """How often something happens: "2" per step, "1 every 2 steps", "once in 4 steps", "3 in 2 of 4 steps".

    What happens in a few steps only is not given as a rate: 0.25 per step may be one event in four steps.

    Args:
        per_step: how often in a mean step.
        in_steps: in how many steps.
        of_steps: of how many steps.
        every: steps from one of them to the next, where that is regular.
    """
    if in_steps is None or of_steps is None or in_steps in (0, of_steps):
        return fmt_count(per_step)
    total = round(per_step * of_steps)
    if total == 1:
        return f"once in {of_steps} steps"
    if every is not None and total % in_steps == 0:
        return f"{fmt_count(total // in_steps)} every {plural(every, 'step')}"
    return f"{fmt_count(total)} in {in_steps} of {of_steps} steps"


#: The name of the copy of a batch to the device by our training loop. It has no line, since no frame of the program is
#: on its stack; the loop's labels identify it.
BATCH_COPY: Final = "the loop's copy of the batch"
#: The labels of the loop: of the whole part, and of the copy alone.
_LABELS: Final = ("data", "copy data")


def is_batch_copy(file: str | None, label: str | None, kind: str | None) -> bool:
    """Whether a sync is that copy: a copy to the device under the loop's label, without a line of the program."""
    return file is None and label in _LABELS and kind == "h2d_copy"


def place_of(site: SiteRow) -> str:
    """A site's line, of one in a library the program's; its label without a line."""
    if site.program is not None:
        return f"{place(*site.program)} (in {site.file}:{site.line})"
    if site.file is not None:
        return place(site.file, site.line, site.function)
    if is_batch_copy(site.file, site.label, site.kind):
        return BATCH_COPY
    return f"a place labelled '{site.label}'" if site.label else "a place without a source line"


@described("Syncs of a trace: host operations that wait for queued GPU work.")
class TracedSyncs(Document, frozen=True):
    count: Annotated[
        int | None,
        column(
            "Syncs",
            "Counted ones: on training threads, in steps. Not measured where the GPU's calls are missing or of a "
            "runtime whose waiting calls are not known. A trace without any call into a GPU's runtime, such as one of "
            "a CPU, has 0 of them, but syncs were not measured there: `per_step` is null.",
            kind="total",
        ),
    ]
    per_step: Annotated[
        float | None,
        column("Syncs per step", "Mean per step; not measured where nothing could have been seen.", kind="rate"),
    ]
    by_step: Annotated[tuple[int, ...] | None, field("Each step's count.", kind="first")]
    blocked_ns: Annotated[
        int | None, column("Host blocked, in all", "Time the host was blocked in all steps.", kind="total")
    ]
    exposed_idle_ns: Annotated[
        int | None,
        column("GPU idle until the next launch, in all", "GPU idle time exposed, each instant once.", kind="total"),
    ]
    ceiling_ns: Annotated[
        int | None,
        column(
            "Saves at most, in all",
            "Upper bound of the time that all steps save without any of these syncs.",
            kind="sum",
        ),
    ]
    by_kind: Annotated[dict[str, int], field("Counts by kind.", kind="total")]
    outside_steps: Annotated[
        int | None,
        column(
            "Outside the steps", "Not counted: outside the steps, such as the profiler's own at its end.", kind="sum"
        ),
    ]
    sites: Annotated[tuple[SyncSite, ...], field("By place, the most blocking first.")]

    @property
    def is_empty(self) -> bool:
        """Whether syncs were not measured."""
        return self.count is None
