"""`trace_excerpt`: the median step of a run's trace as a small trace of its own, beside the run's tables."""

from pathlib import Path

from steptrace.documents.summary import TraceExcerpt
from steptrace.trace.excerpt import write_excerpt
from steptrace.trace.find import EXCERPT_FILE


def excerpt_of_run(trace: Path, tables: Path) -> TraceExcerpt:
    """Write `excerpt.json.gz` into the folder of a run's tables and return what summary.json says of it.

    Returns its file as seen from the run's folder, its size in bytes, the step it shows (None for a trace without
    steps), whether that is there whole, and which categories of events had to be left out.

    Raises:
        TraceError: the trace cannot be read, or no part of it fits.
    """
    made = write_excerpt(trace, tables / EXCERPT_FILE)
    return TraceExcerpt(
        file=f"{tables.name}/{EXCERPT_FILE}",
        bytes=made.size,
        step=made.step,
        whole=made.whole,
        left_out=tuple(made.left_out),
    )
