"""The tables of the picture of one step. Times count from the start of the time shown."""

from steptrace.schema.table import Column, Table

_LANE = Column("lane", "int64", "Row of `timeline_lanes`.")

TIMELINE_LANES = Table(
    name="timeline_lanes",
    doc="One lane of the picture of a step, from top to bottom.",
    columns=(
        Column("lane", "int64", "Its number."),
        Column("kind", "string", "`host` (a thread), `calls` (into the GPU's runtime), `syncs`, `idle` or `stream`."),
        Column("name", "string", "What stands at it."),
        Column("events", "int64", "Events in the time shown."),
        Column("shown", "bool", "Whether it has boxes: of many threads and streams those with the most time do."),
    ),
    key=("lane",),
)

TIMELINE = Table(
    name="timeline",
    doc="One box of the picture of a step: an event, or several of one kind, each too short to be seen, that stand too "
    "close to be told apart.",
    columns=(
        _LANE,
        Column("level", "int64", "Row of boxes within the lane, 0 at the top."),
        Column(
            "kind",
            "string",
            "`section` (label), `loader`, `op`, `launch`, `call`, `sync`, `compute`, `comm`, `memory`, or `idle_` with "
            "the cause.",
        ),
        Column("name", "string", "Name of the event, of several the longest's."),
        Column("start_ns", "int64", "Start, cut off at the start of the time shown.", "ns"),
        Column("dur_ns", "int64", "From its start to the end of its last event.", "ns"),
        Column("events", "int64", "How many events it stands for."),
        Column("time_ns", "int64", "Sum of their lengths within the time shown.", "ns"),
    ),
)
