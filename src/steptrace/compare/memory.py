"""The memory of each variant by its runs' records."""

from msgspec.structs import replace

from steptrace.compare.load import Run, Variant
from steptrace.documents.column import over_runs
from steptrace.documents.run import RunMemory
from steptrace.errors import SteptraceError
from steptrace.record import read_memory


def memory_of(variant: Variant) -> RunMemory | None:
    """`memory` of a variant in comparison.json: its runs' records as one; None without any."""
    records = [record for run in variant.runs if (record := _record(run)) is not None]
    ended_well = [record for record in records if record.oom is None]
    if not records:
        return None
    oom = next((record.oom for record in records if record.oom is not None), None)
    return replace(over_runs(ended_well or records), oom=oom)


def _record(run: Run) -> RunMemory | None:
    """What a run wrote of its memory, if it ended well or ran out of it."""
    if run.status not in ("ok", "oom"):
        return None
    try:
        return read_memory(run.path)
    except SteptraceError:
        return None
