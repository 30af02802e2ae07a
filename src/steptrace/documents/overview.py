"""The parts of a step's time, and the operators that take it."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from steptrace.documents.base import Document, column, described, field, key

#: The time of each part of a whole in ns, by the part's name.
PartTimes = dict[str, int]
#: The same; null for a part that could not be told from what the trace holds. Its time is in `idle_unknown`.
KnownTimes = dict[str, int | None]


def _known(parts_ns: KnownTimes) -> PartTimes:
    return {name: ns for name, ns in parts_ns.items() if ns is not None}


#: Why a GPU is idle, as a sentence goes on after "idle".
IDLE_CAUSES: Final[Mapping[str, str]] = {
    "sync": "after a sync",
    "loader": "while the host waits for data",
    "host": "because nothing was launched",
    "dependency": "for another stream or an event",
    "between_kernels": "between queued kernels",
    "unknown": "for an unknown reason",
}
_NAMES: Final[Mapping[str, str]] = {
    "compute": "compute",
    "exposed_comm": "exposed communication",
    "exposed_wait": "waiting for other ranks",
    "exposed_transfer": "exposed communication without waiting",
    "exposed_memory": "exposed copies and memsets",
    **{f"idle_{cause}": f"idle {why}" for cause, why in IDLE_CAUSES.items()},
    "bits8": "8-bit or less",
    "bits16": "16-bit",
    "bits32": "32-bit",
    "bits64": "64-bit",
    "workspaces": "cuBLAS workspaces",
}


def part_name(part: str) -> str:
    """The name of a part of a step's time, or of memory, in words: "idle after a sync" for `idle_sync`."""
    return _NAMES.get(part, part.replace("_", " "))


@described("The operators of one name, by their own time: the GPU's where there is one, else the host's.")
class TopOperator(Document, frozen=True):
    name: Annotated[str | None, key("Operator", "Operator; none for GPU work that no operator launched.")]
    calls: Annotated[int | None, column("Calls", "Calls of the operator.", kind="total")]
    host_self_ns: Annotated[
        int | None,
        column(
            "Own host time",
            "Host time in the operator itself, launching included, without those it calls.",
            kind="total",
        ),
    ]
    device_self_ns: Annotated[
        int | None, column("GPU time", "Length of GPU work that it launched itself.", kind="total")
    ]
    share: Annotated[
        float,
        column(
            "Share of time",
            "Of all GPU time, or, where their GPU time is not known, of all operators' own host time.",
            "share",
            kind="share",
        ),
    ]


class StepParts(Document, frozen=True):
    """Where the time of one step goes."""

    index: Annotated[int, field("The N of `ProfilerStep#N`.")]
    parts_ns: Annotated[
        KnownTimes, field("Its time by part. The sum over the steps is that of all steps together; null as there.")
    ]

    @property
    def known_ns(self) -> PartTimes:
        """The parts that could be told."""
        return _known(self.parts_ns)


@described("How long a step takes, where that time goes, and what takes it; the parts add up to the window.")
class Overview(Document, frozen=True):
    kind: Annotated[Literal["gpu", "host"], field("Whether the parts are the GPU's, or the loop's labels.")]
    steps: Annotated[int, field("Steps; 0: the GPU's span is the window.", kind="sum")]
    window_ns: Annotated[int, field("Length of the window.", kind="sum", centre="mean")]
    step_ns: Annotated[float | None, field("Mean time of a step.", kind="mean", centre="mean")]
    parts_ns: Annotated[
        KnownTimes,
        column(
            "Where a step goes",
            "All steps' window over their number, or the GPU's span. Each instant counts once: compute, else exposed "
            "communication or copies, else idle by cause. Without a GPU: host time between the loop's labels. Null: "
            "a cause that cannot be told since launches or other calls are missing; its time is idle for an unknown "
            "reason.",
            kind="total",
            centre="mean",
        ),
    ]
    operators: Annotated[
        tuple[TopOperator, ...], field("The operators with the most time of their own.", kind="first")
    ] = ()
    exposed_wait_ns: Annotated[
        int | None,
        column(
            "Exposed waiting",
            "Of exposed communication, waiting for other ranks: no collective was past the arrival of its last rank. "
            "Null unless the traces of all ranks were read together.",
            kind="sum",
            centre="mean",
        ),
    ] = None
    least_exposed_wait_ns: Annotated[
        int | None,
        field(
            "Where only some ranks were read: exposed waiting for these, a lower bound of all waiting. Otherwise null.",
            kind="sum",
        ),
    ] = None

    by_step: Annotated[
        tuple[StepParts, ...], field("The same parts of each step, in their order; none without steps.", kind="first")
    ] = ()

    @property
    def of_step(self) -> dict[str, float]:
        """The parts of a mean step in ns; of a trace without steps those of the whole trace."""
        return {name: ns / (self.steps or 1) for name, ns in self.known_ns.items()}

    @property
    def known_ns(self) -> PartTimes:
        """The parts that could be told."""
        return _known(self.parts_ns)
