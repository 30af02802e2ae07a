"""A variant predicted from its baseline's traces, and held against what was measured.

The sites that the variant does away with are taken out of the graph of the baseline's steps
(`steptrace.analysis.critical_path`). A profiled step is not an unprofiled one: what carries over is the ratio. The
graph knows nothing else that the variant changes, such as the work it does instead; the error tells of that too.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import numpy as np

from steptrace.analysis.critical_path.build import graph_of
from steptrace.analysis.syncs.whatif import SITE_KEY, WhatIf, fit, rows_by_site, saved_ns
from steptrace.compare.load import Variant
from steptrace.documents.comparison import StepTimes, SyncDiff, SyncPrices, WhatIfOfVariant
from steptrace.schema import read_table
from steptrace.trace.model import read_tables

#: Where an analysis leaves the tables of a run's first trace, seen from the run's folder.
TABLES_FOLDER: Final = Path("tables") / "trace0"

_PLACE: Final = tuple(name for name in SITE_KEY if name != "code")


def predicted_step(
    baseline: Variant, baseline_ms: StepTimes | None, variant_ms: StepTimes | None, diff: SyncDiff | None
) -> WhatIfOfVariant | None:
    """`whatif` of comparison.json: the variant's step time, predicted from the baseline's traces, and as measured.

    None for the baseline, without a measured sync diff, or if the variant removes no site.
    """
    if diff is None or diff.basis != "measured" or baseline_ms is None or variant_ms is None:
        return None
    gone = [site for site in diff.sites if site.baseline_count_per_step and not site.variant_count_per_step]
    if not gone:
        return None
    keys = {tuple(getattr(site, name) for name in _PLACE) for site in gone}
    found = [_without_sites(run.path / TABLES_FOLDER, keys) for run in baseline.runs if run.measured is not None]
    ratios = [ratio for ratio, _, _ in found if ratio is not None]
    reasons = [reason for _, _, reason in found if reason is not None]
    predicted = float(np.median(ratios)) * baseline_ms.median if ratios else None
    return WhatIfOfVariant(
        removed_per_step=sum(site.baseline_count_per_step or 0 for site in gone),
        added_per_step=sum(
            max((site.variant_count_per_step or 0) - (site.baseline_count_per_step or 0), 0) for site in diff.sites
        ),
        predicted_ms=predicted,
        measured_ms=variant_ms.median,
        error=None if predicted is None else predicted / variant_ms.median - 1,
        replay_error=max((fitted.error for _, fitted, _ in found if fitted is not None), key=abs, default=None),
        runs=len(ratios),
        reason=reasons[0] if not ratios and reasons else None,
    )


def sync_prices(variant: Variant) -> SyncPrices | None:
    """`sync_prices` of comparison.json: what were gained a step were all of the variant's own syncs gone.

    In profiled ns a step: `all_saved_ns_per_step` (None with a `reason` where the model does not fit), and
    `all_ceiling_ns_per_step`; medians over the runs. None if no run has a GPU trace with steps.
    """
    found = [trace.whatif for trace in variant.traces if trace.whatif is not None and trace.whatif.steps]
    if not found:
        return None
    saved = [record.all_saved_ns / record.steps for record in found if record.all_saved_ns is not None]
    return SyncPrices(
        all_saved_ns_per_step=float(np.median(saved)) if saved else None,
        all_ceiling_ns_per_step=float(np.median([record.all_ceiling_ns / record.steps for record in found])),
        replay_error=max((record.error for record in found), key=abs),
        unexplained_ns_per_step=float(np.median([record.unexplained_ns / record.steps for record in found])),
        reason=None if saved else found[0].reason,
    )


def _without_sites(folder: Path, keys: Collection[tuple[Any, ...]]) -> tuple[float | None, WhatIf | None, str | None]:
    """The step's time without these sites over that with them, how well the model fits, and why there is no ratio."""
    try:
        trace = read_tables(folder)
        costs = read_table(folder / "sync_costs.parquet")
    except (OSError, ValueError) as error:
        return None, None, f"the tables of its trace cannot be read ({error})"
    graph = graph_of(trace)
    fitted = fit(graph)
    if graph is None or fitted.misfit is not None:
        return None, fitted, fitted.misfit
    places = [SITE_KEY.index(name) for name in _PLACE]
    gone: set[int] = set()
    for key, rows in rows_by_site(costs).items():
        if tuple(key[place] for place in places) in keys:
            gone |= rows
    return 1 - saved_ns(graph, gone) / fitted.measured_ns, fitted, None
