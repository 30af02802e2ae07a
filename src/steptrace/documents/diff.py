"""diff.json: two traces, or two jobs' ranks, side by side. Totals are per step; what a side cannot show is null."""

from typing import Annotated

from steptrace.documents.base import Document, File, column, field


class Pair(Document, frozen=True):
    """A figure on both sides; a total is per step. Null where a side does not have it."""

    a: float | None
    b: float | None


class RowChange(Document, frozen=True):
    """A kernel, operator, sync, line, or a row of another table, that changed."""

    name: Annotated[str, field("Its name, or keys, on side B; on side A where B lacks it.")]
    place: Annotated[str | None, field("File and function; of a sync without a line its label.")]
    renamed_from: Annotated[
        tuple[str, ...],
        column(
            "Same kernel",
            "By name, else without numbers and parameters, else by what it computes; kernels alike are added up.",
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


class DiffSide(Document, frozen=True):
    """One side."""

    paths: Annotated[tuple[str, ...], field("Its traces.")]
    steps: Annotated[int, field("Steps of all its traces; 0: figures are of whole traces.")]
    devices: Annotated[tuple[str, ...], field("Names of its GPUs.")]


class Diff(File, frozen=True, kw_only=True):
    """The content of diff.json. Rows stand by the size of their change, the largest first."""

    a: DiffSide
    b: DiffSide
    cause: Annotated[str, field("What makes most of the difference, in a sentence.")]
    notes: Annotated[tuple[str, ...], field("What to be careful about.")]
    step_ns: Annotated[Pair, field("Mean profiled step, or trace.")]
    parts_ns: Annotated[dict[str, Pair], field("Its parts.")]
    figures: Annotated[dict[str, Pair], field("Those of docs/metrics.md.")]
    not_measured: Annotated[tuple[str, ...], field("Topics that a side cannot show.")]
    kernels: tuple[RowChange, ...]
    operators: tuple[RowChange, ...]
    syncs: tuple[RowChange, ...]
    lines: tuple[RowChange, ...]
    tables: Annotated[
        dict[str, tuple[RowChange, ...]],
        field("Of the subjects of a trace that are one table, by their names, those that changed."),
    ]

    def rows(self, topic: str) -> tuple[RowChange, ...]:
        """The rows of `kernels`, `operators`, `syncs`, `lines`, or one of `tables`."""
        rows: tuple[RowChange, ...] = getattr(self, topic, self.tables.get(topic, ()))
        return rows
