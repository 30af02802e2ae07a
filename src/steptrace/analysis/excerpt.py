"""`trace_excerpt`: the median step of a run's trace as a small trace of its own, beside the run's traces."""

from pathlib import Path

from steptrace.documents.summary import TraceExcerpt
from steptrace.trace.excerpt import write_excerpt
from steptrace.trace.find import EXCERPT_FILE


def excerpt_of_run(trace: Path, run_dir: Path) -> TraceExcerpt:
    """Write `excerpt.json.gz` into a run's folder and return what summary.json says of it.

    Returns the name of its file, its size in bytes, the step it shows (None for a trace without steps), whether that is
    there whole, and which categories of events had to be left out.

    Raises:
        TraceError: the trace cannot be read, or no part of it fits.
    """
    made = write_excerpt(trace, run_dir / EXCERPT_FILE)
    return TraceExcerpt(
        file=EXCERPT_FILE, bytes=made.size, step=made.step, whole=made.whole, left_out=tuple(made.left_out)
    )
