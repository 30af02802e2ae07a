"""How far a trace can be trusted."""

from typing import Annotated, Any, Final, Literal

import msgspec

from steptrace.documents.base import Document, Row, column, described, field, key
from steptrace.documents.note import Note, note

#: Where records are missing, in the order of time: everywhere, at one of the ends, in one place, or here and there.
Place = Literal["all", "start", "end", "middle", "scattered"]

#: Which labels mark the steps: the profiler's `ProfilerStep#N`, or PyTorch's own of optimizer steps or of the loader.
StepSource = Literal["profiler", "optimizer", "loader"]


#: What is checked of a trace.
CheckCode = Literal[
    "steps_marked",
    "gpu_work",
    "kernel_launches_with_work",
    "graph_launches_with_work",
    "copies_with_work",
    "waiting_calls",
    "linked_to_launch",
    "launches_with_operator",
    "after_launch",
    "starts",
    "ends",
    "one_at_a_time",
    "communication",
    "one_gpu",
    "step_numbers",
    "steps_in_turn",
    "operators_within_steps",
    "steps_with_work",
]


@described("Launches that put work on a GPU which the trace does not hold, or not all of it.")
class LostRecords(Document, frozen=True):
    launch: Annotated[str, key("Launches", "`kernel`, `graph` or `copy`: what was launched.")]
    place: Annotated[Place, field("Where in the trace: `all`, `start`, `end`, `middle` or `scattered`.")]
    lost: Annotated[int, column("Without GPU work", "Launches whose work is missing.")]
    of: Annotated[int, column("Of", "All launches of this kind.")]
    partly: Annotated[int, field("Of those without, graph launches that have a part of their work.")] = 0


@described("A step that no figure counts: records of it are missing, or steps between it and those that count.")
class LeftOutStep(Document, frozen=True):
    index: Annotated[int, key("ProfilerStep", "The profiler's number of the step.")]
    start_ns: Annotated[int, field("Start.")]
    dur_ns: Annotated[int, field("Length on the host.")]


@described("A GPU activity with an end over later work of its stream, or a start before its launch, which was cut.")
class CutEnd(Document, frozen=True):
    name: Annotated[str, key("Name", "Name of the activity.")]
    device: Annotated[int, field("GPU.")]
    stream: Annotated[int, field("Stream.")]
    recorded_ns: Annotated[int, column("Recorded", "Length as recorded.", plain=True)]
    kept_ns: Annotated[int, column("Kept", "Length that was kept, as the check of ends or starts says.")]


_CHECK: Final = """One thing that can be wrong with a trace, and how much of it is.

It warns if what is missing could change a figure.
"""


@described(_CHECK)
class CheckRow(Row, frozen=True):
    check: Annotated[CheckCode, key("Check", "What was looked for.")]
    wrong: Annotated[int, column("Wrong", "How many are wrong.", kind="sum")]
    of: Annotated[int, column("Of", "Of how many.", kind="sum", plain=True)]
    warns: Annotated[bool, column("Warns", "Whether that is enough to warn of.")]
    says: Annotated[str, column("Result", "The result as a sentence.")]


@described(_CHECK)
class QualityCheck(CheckRow, frozen=True, kw_only=True):
    figures: Annotated[dict[str, Any], field("What the sentence names besides, by name.", kind="first")] = (
        msgspec.field(default_factory=dict)
    )


class OptimizerSteps(Document, frozen=True):
    """How steps of optimizers of one class make steps of training, where they mark these."""

    count: Annotated[
        int | None,
        field(
            "Optimizer steps of a step: after so many the backward passes repeat. Null where they differ without a "
            "period: then a step may be a part of one."
        ),
    ]


@described("What a reader should know before trusting a trace's figures.")
class Quality(Document, frozen=True):
    steps: Annotated[int, field("Steps counted.", kind="sum")]
    launch_coverage: Annotated[
        float | None, column("GPU work with its launch", "Of GPU activities.", "share", kind="share", plain=True)
    ]
    warnings: Annotated[tuple[str, ...], field("The reader's notes, and the checks that warn, as sentences.")]
    checks: Annotated[tuple[QualityCheck, ...], field("Every check.")]
    steps_from: Annotated[
        StepSource | None,
        field("Labels that mark the steps: `profiler`, else `optimizer` or `loader`; null without steps.", kind="fact"),
    ] = None
    optimizer_steps: Annotated[
        OptimizerSteps | None,
        field(
            "How optimizer steps make the steps; null where other labels mark them, or optimizers of several classes.",
            kind="first",
        ),
    ] = None
    lost: Annotated[tuple[LostRecords, ...], field("Launches whose GPU work is missing.", kind="first")] = ()
    left_out: Annotated[tuple[LeftOutStep, ...], field("Steps left out for that, or for a gap.", kind="first")] = ()
    cut: Annotated[tuple[CutEnd, ...], field("Activities whose end was cut.", kind="first")] = ()
    cut_starts: Annotated[tuple[CutEnd, ...], field("Activities whose start was cut.", kind="first")] = ()
    notes: Annotated[
        tuple[Note, ...],
        field("What the reader left out or repaired: events that it does not know, impossible times.", kind="first"),
    ] = ()
    gpu_measured: Annotated[
        bool | None,
        field("Whether the GPU's figures could be computed; false where too many records are missing.", kind="fact"),
    ] = None

    @property
    def cautions(self) -> tuple[Note, ...]:
        """The facts of `warnings`: the reader's notes, and a note for each check that warns."""
        checks = (
            note("trace_quality", check=check.check, wrong=check.wrong, of=check.of, figures=check.figures)
            for check in self.checks
            if check.warns
        )
        return (*self.notes, *checks)
