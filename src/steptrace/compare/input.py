"""How long a variant waits for its data.

The wait is that of the unprofiled steps. Where a GPU works meanwhile it costs nothing: the profiled window says which
part of the wait had the GPU idle, and that part of the unprofiled wait counts. Without a GPU all of it does.
"""

from contextlib import suppress
from typing import Any, Final

import numpy as np
import pandas as pd

from steptrace.analysis.input import verdict_on
from steptrace.compare.explain import median_ms, median_of
from steptrace.compare.load import Measured, Variant
from steptrace.documents.run import InputOfRun
from steptrace.documents.variant import LoaderWait, LoadingParts
from steptrace.errors import RecordError
from steptrace.format import NS_PER_MS
from steptrace.record import read_rows

#: The parts of loading a batch, in the order a batch goes through them.
PARTS: Final = ("fetch", "collate", "pin", "copy")


def input_figures(variant: Variant) -> LoaderWait | None:
    """`input` of a variant: medians over its runs, None in place of what no run measured.

    `wait_ms` and `step_ms` are means over the same unprofiled steps, so that `share` (0 to 1), what of the step time
    counts, is `counted_ms` over `step_ms` in every run. `idle_part` says which part of the wait had the GPU idle.
    """
    runs = variant.measured
    if not runs:
        return None
    share = median_of(runs, lambda run: _counted(run, run.wait_share))
    return LoaderWait(
        workers=(runs[0].record.config.get("data") or {}).get("num_workers"),
        wait_ms=median_ms(runs, lambda run: run.wait_ns),
        counted_ms=median_ms(runs, lambda run: _counted(run, run.wait_ns)),
        step_ms=median_ms(runs, lambda run: float(run.times.counted.mean())),
        idle_part=median_of(runs, lambda run: _idle_part(run) if _on_gpu(run) else None),
        share=share,
        verdict=verdict_on(share),
        breakdown_ms=_breakdown(variant),
    )


def _counted(run: Measured, wait: float | None) -> float | None:
    """What of a wait counts."""
    part = _idle_part(run)
    return None if part is None or wait is None else part * wait


def _idle_part(run: Measured) -> float | None:
    """The part of the wait that counts: of a GPU's run as its trace says, else all."""
    if not _on_gpu(run):
        return 1.0
    traced = None if run.trace is None else run.trace.input
    if traced is None or not traced.wait_ns or traced.gpu_idle_wait_ns is None:
        return None
    return traced.gpu_idle_wait_ns / traced.wait_ns


def _on_gpu(run: Measured) -> bool:
    return run.record.device == "cuda"


def _breakdown(variant: Variant) -> LoadingParts | None:
    """Milliseconds a batch in each part of loading; None without such a pass."""
    tables = []
    for run in variant.runs:
        with suppress(RecordError):  # an extra: the wait stands without it
            rows = read_rows(run.path, InputOfRun) if run.measured is not None else None
            tables += [] if rows is None else [rows]
    if not tables:
        return None
    by_run = {part: [_median_ms(table[f"{part}_ns"]) for table in tables] for part in PARTS}
    return LoadingParts(**{part: median_of(medians, lambda ms: ms) for part, medians in by_run.items()})


def _median_ms(values: "pd.Series[Any]") -> float | None:
    measured = values.dropna().to_numpy(dtype=np.float64)
    return float(np.median(measured)) / NS_PER_MS if len(measured) else None
