"""Figures of idle time: its causes, what ended it, and what the host did meanwhile."""

from typing import Annotated, Literal

from steptrace.documents.base import Document, Row, column, described, field, key, reference
from steptrace.format import duration
from steptrace.limits import KERNEL_WAIT_BELOW_NS

#: What the host does while the GPU is idle. Where Python stacks were recorded, what is outside operators is Python.
HostActivity = Literal["outside_operators", "python", "operators", "runtime_calls"]


@described("The gaps before the activities of one stream, summed by category, as Holistic Trace Analysis has them.")
class StreamIdle(Row, frozen=True):
    device: Annotated[int, key("GPU", "GPU.", local=True)]
    stream: Annotated[int, key("Stream", "Stream.")]
    host_wait_ns: Annotated[
        int,
        column(
            "Idle, launched late",
            "Gaps before work launched after the previous work had ended; HTA: host wait.",
            kind="total",
        ),
    ]
    kernel_wait_ns: Annotated[
        int,
        column(
            "Idle, short gaps", f"Other gaps under {duration(KERNEL_WAIT_BELOW_NS)}; HTA: kernel wait.", kind="total"
        ),
    ]
    other_ns: Annotated[int, column("Idle, other", "The rest.", kind="total", plain=True)]


@described("The gaps of one cause that activities of one operator ended.")
class IdleEnding(Document, frozen=True):
    cause: Annotated[str, key("Cause", "`sync`, `loader`, `host`, `dependency`, `between_kernels` or `unknown`.")]
    op: Annotated[str | None, key("Operator whose work came next", "The operator whose work ended the gaps.")]
    label: Annotated[str | None, key("Label", "The innermost label that launched it.")]
    gaps: Annotated[int, column("Gaps", "How many.", kind="total", plain=True)]
    idle_ns: Annotated[int, column("Idle", "Their summed length.", kind="total", plain=True)]
    longest_ns: Annotated[int, column("Longest", "The longest.", kind="max", plain=True)]


@described(
    """One gap between two activities of a GPU, all its streams taken together, with its cause and what ended it.
    """
)
class IdleGap(Document, frozen=True):
    ts: Annotated[int, column("At", "Start of the gap.", kind="first")]
    dur: Annotated[int, column("Length", "Length.", kind="first", plain=True)]
    cause: Annotated[
        str,
        column(
            "Cause of idle",
            "Time of the GPU, not of the host. Each gap in a GPU's work has one cause: a sync (the host was blocked in "
            "one when the GPU ran dry, or for half of the gap), the host waited for data, the host had launched "
            "nothing, queued work waited for another stream or an event, the GPU's own gap between two kernels queued "
            "on one stream, or unknown; tested in this order. A gap that ends with work launched before the sync began "
            "is not the sync's.",
        ),
    ]
    kernel: Annotated[int, reference("kernels", "the activity that ended it.", kind="first")]
    name: Annotated[str, column("Ended by", "Short name of that activity.")]
    stream: Annotated[int, field("Stream it ran on.", kind="first")]
    launch: Annotated[int | None, reference("launches", "the call that caused it.", kind="first")]
    launched_after_ns: Annotated[
        int | None, column("Launched after", "From the gap's start to the start of that call.", kind="first")
    ]
    op: Annotated[str | None, column("Operator", "The operator that made the call.")]
    label: Annotated[str | None, field("The innermost label that the call was made in.")]
    step: Annotated[int | None, reference("steps", "the step that launched it.", kind="first")]


@described("Why the GPU, or a stream of it, had nothing to do.")
class Idle(Document, frozen=True):
    by_stream: Annotated[tuple[StreamIdle, ...], field("Per stream, as Holistic Trace Analysis sorts it.")]
    gaps: Annotated[int | None, field("Number of gaps.", kind="sum")]
    ended_by: Annotated[
        tuple[IdleEnding, ...], field("The first work after the gaps, most idle time first.", kind="first")
    ]
    longest: Annotated[tuple[IdleGap, ...], field("The longest gaps.", kind="first")]

    @property
    def is_empty(self) -> bool:
        """Whether gaps were not measured."""
        return self.gaps is None


class HostCall(Document, frozen=True):
    """Calls of one name into the GPU's runtime within a gap."""

    name: Annotated[str, field("Name of the call.")]
    count: Annotated[int, field("Calls.", kind="sum")]
    ns: Annotated[int, field("Their time within the gap.", kind="sum")]


class HostGap(Document, frozen=True):
    """One gap in the GPU's work that only the host explains."""

    where: Annotated[Literal["before", "between", "after"], field("Before the GPU's first work, between, after it.")]
    ts: Annotated[int, field("Start.", kind="first")]
    dur: Annotated[int, field("Length.", kind="first")]
    op: Annotated[str | None, field("Operator whose work ended it.")]
    label: Annotated[str | None, field("Label whose work ended it.")]
    calls: Annotated[tuple[HostCall, ...], field("What the host called meanwhile.")]


class HostGaps(Document, frozen=True):
    """The gaps that only the host explains, and the long calls in them."""

    gap_ns: Annotated[int, field("All such gaps together.", kind="sum")]
    long_call_ns: Annotated[int, field("Of these, in long calls into the GPU's runtime.", kind="sum")]
    gaps: Annotated[tuple[HostGap, ...], field("The longest.", kind="first")]
    call_ns: Annotated[
        int | None, field("Of `gap_ns`, with a training thread in any call into the GPU's runtime.", kind="sum")
    ] = None
    op_ns: Annotated[int | None, field("Of the rest, with one in an operator.", kind="sum")] = None
