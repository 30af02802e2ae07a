"""diff.json: two traces, or two jobs' ranks, side by side. Totals are per step; what a side cannot show is null."""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_type_hints

import msgspec

from steptrace.documents.base import Document, File, column, field
from steptrace.documents.estimate import Estimate
from steptrace.documents.kernels import KernelName
from steptrace.documents.overview import TopOperator
from steptrace.documents.program import LineTime
from steptrace.documents.step_times import Statistic
from steptrace.documents.sync_counts import SyncDiff
from steptrace.documents.syncs import SyncSite


class Pair(Document, frozen=True):
    """A figure on both sides; a total is per step. Null where a side does not have it."""

    a: float | None
    b: float | None


class RowChange(Document, frozen=True):
    """A kernel, operator, sync, line, or a row of another table, that changed."""

    name: Annotated[str, field("Its name, or keys, on side B; on side A where B lacks it.")]
    place: Annotated[str | None, field("File and function; the label for a sync without a line.")]
    renamed_from: Annotated[
        tuple[str, ...],
        column(
            "Same kernel",
            "The name of the same kernel in A, if it differs. Names are compared first as they are, then without "
            "numbers and parameters, then by what they compute. Matching kernels are added up.",
        ),
    ]
    in_a: Annotated[bool, field("Whether A has it.")]
    in_b: Annotated[bool, field("Whether B has it.")]
    figures: Annotated[
        dict[str, Pair],
        field(
            "By the column's name in the table. Of a side without the row totals are 0, and every other figure is null."
        ),
    ]


class MeasuredSide(Document, frozen=True):
    """Figures of `steptrace run`, or of a variant's runs: those measured without the profiler, and predicted ones."""

    runs: Annotated[int, field("Runs; one has no interval.")]
    steps: Annotated[int, field("Timed steps of all runs.")]
    device: Annotated[str, field("`cpu` or `cuda`.")]
    gpu: Annotated[str | None, field("Name of the GPU.")]
    step_ns: Annotated[
        float | None, field("Unprofiled step time; the median of several runs. Null if no step was timed.")
    ]
    low_ns: Annotated[float | None, field("5 % of the timed steps are shorter.")]
    high_ns: Annotated[float | None, field("5 % of the timed steps are longer.")]
    loader_wait_ns: Annotated[float | None, field("Mean wait for data of a timed step; null without a DataLoader.")]
    peak_allocated_bytes: Annotated[int | None, field("Most bytes allocated in the whole training, of any run.")]
    measured_syncs_per_step: Annotated[float | None, field("By its traces; null without a GPU.")]
    predicted_syncs_per_step: Annotated[float | None, field("On a virtual GPU; null without a prediction.")]
    estimates: Annotated[
        tuple[Estimate, ...], field("Estimates for GPUs that are not in this machine; empty without a prediction.")
    ] = ()


class MeasuredDiff(Document, frozen=True):
    """Two results of `steptrace run`, or two variants, side by side; a side that is only a trace is null."""

    statistic: Annotated[
        Statistic, field("What the step time is: the median, or the mean where long steps come back on a side.")
    ]
    a: MeasuredSide | None
    b: MeasuredSide | None
    ratio: Annotated[float | None, field("Step time of A over that of B: above 1, B is shorter. No verdict.")]
    predicted_syncs: Annotated[
        SyncDiff | None, field("Predicted syncs by place, A as the baseline; null unless both sides have a prediction.")
    ]
    environment: Annotated[tuple[str, ...], field("What differs in where the two ran: keys of `Environment`.")]


class DiffSide(Document, frozen=True):
    """One side."""

    paths: Annotated[tuple[str, ...], field("Its traces.")]
    steps: Annotated[int, field("Steps of all its traces; 0: figures are of whole traces.")]
    devices: Annotated[tuple[str, ...], field("Names of its GPUs.")]


class DiffCause(Document, frozen=True, kw_only=True):
    """The largest parts of the difference; `words.diff` makes the sentence."""

    lacking: Annotated[
        Literal["a", "b", "both"] | None,
        field("The side without profiled steps. If there is one, the other fields are null."),
    ] = None
    a_ns: Annotated[float | None, field("Length of a profiled step of A, or of its trace.")] = None
    b_ns: Annotated[float | None, field("Length of a profiled step of B, or of its trace.")] = None
    whole_traces: Annotated[bool, field("Whether whole traces are compared, since a side marks no steps.")] = False
    is_same: Annotated[bool, field("Whether the difference is below the noise floor.")] = False
    part: Annotated[str | None, field("The part of the step with most of the difference: a key of `parts_ns`.")] = None
    part_ns: Annotated[float | None, field("How much longer that part is in B.")] = None
    row: Annotated[str | None, field("The kernel, operator or sync that changes most in the same direction.")] = None
    place: Annotated[str | None, field("Its place, if it has one.")] = None
    row_ns: Annotated[float | None, field("How much longer it takes in B.")] = None


#: What makes two sides hard to compare.
DiffNoteCode = Literal[
    "other_gpus",
    "other_numbers_of_traces",
    "few_kernels_of_both",
    "few_steps",
    "trace_not_read",
    "trace_note",
    "unprofiled_steps",
    "profiler_slows_one_side",
]


class DiffNote(Document, frozen=True):
    """One thing that makes two sides hard to compare; `words.diff` makes the sentence."""

    code: Annotated[DiffNoteCode, field("Which.")]
    figures: Annotated[dict[str, Any], field("Its figures and names, by name.")]


#: What both sides must have so that a topic is compared.
Needs = Literal["gpu_work", "gpu_work_with_lines", "gpu_work_with_syncs", "profiled_steps"]


@dataclass(frozen=True)
class Topic:
    """A topic that every diff compares: a field of `Diff`.

    Attributes:
        name: of the field.
        heading: above it on the page.
        kind: the type of the rows that are compared.
        needs: what both sides must have.
    """

    name: str
    heading: str
    kind: type[Document]
    needs: Needs


def _topic(heading: str, kind: type[Document], needs: Needs) -> msgspec.Meta:
    return msgspec.Meta(
        description=f"{heading} that changed.", extra={"topic": {"heading": heading, "kind": kind, "needs": needs}}
    )


class Diff(File, frozen=True, kw_only=True):
    """The content of diff.json. Rows stand by the size of their change, the largest first."""

    schema_version: Annotated[int, field("Version of this document.")] = 2
    a: DiffSide
    b: DiffSide
    cause: Annotated[str, field("What makes most of the difference, in a sentence.")]
    notes: Annotated[tuple[str, ...], field("What to be careful about.")]
    step_ns: Annotated[Pair, field("Mean profiled step, or trace; null where a side has no trace.")]
    parts_ns: Annotated[dict[str, Pair], field("Its parts.")]
    figures: Annotated[dict[str, Pair], field("Those of docs/metrics.md.")]
    not_measured: Annotated[tuple[str, ...], field("Topics that a side cannot show.")]
    kernels: Annotated[tuple[RowChange, ...], _topic("Kernels", KernelName, "gpu_work")]
    operators: Annotated[tuple[RowChange, ...], _topic("Operators", TopOperator, "profiled_steps")]
    syncs: Annotated[tuple[RowChange, ...], _topic("Syncs", SyncSite, "gpu_work_with_syncs")]
    lines: Annotated[tuple[RowChange, ...], _topic("Lines", LineTime, "gpu_work_with_lines")]
    tables: Annotated[
        dict[str, tuple[RowChange, ...]],
        field("Of the subjects of a trace that are one table, by their names, those that changed."),
    ]

    cause_figures: Annotated[DiffCause | None, field("The facts of `cause`; null in older files.")] = None
    remarks: Annotated[tuple[DiffNote, ...], field("The facts of `notes`.")] = ()
    measured: Annotated[
        MeasuredDiff | None, field("Without the profiler; null unless a side is a result of `steptrace run`.")
    ] = None

    def rows(self, topic: str) -> tuple[RowChange, ...]:
        """The rows of `kernels`, `operators`, `syncs`, `lines`, or one of `tables`."""
        rows: tuple[RowChange, ...] = getattr(self, topic, self.tables.get(topic, ()))
        return rows


def _topics() -> tuple[Topic, ...]:
    hints = get_type_hints(Diff, include_extras=True)
    metas = {name: getattr(hints[name], "__metadata__", (None,))[0] for name in Diff.__struct_fields__}
    declared = {name: (meta.extra or {}).get("topic") for name, meta in metas.items() if isinstance(meta, msgspec.Meta)}
    return tuple(Topic(name, **topic) for name, topic in declared.items() if topic is not None)


#: The topics that every diff has, in the order of its page.
TOPICS: Final = _topics()
