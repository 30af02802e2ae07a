"""A variant foretold from its baseline's traces, and held against what was measured.

The sites that the variant does away with are taken out of the baseline's host and device queues, which are then run
through again (`steptrace.analysis.syncs.replay`). A profiled step is not an unprofiled one: what carries over is the
ratio. The replay knows nothing else that the variant changes, such as the work it does instead; the error tells of that
too.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from steptrace.analysis.syncs.replay_model import StoredTables, queues_of
from steptrace.analysis.syncs.whatif import SITE_KEY, WhatIf, fit, rows_by_site, saved_ns
from steptrace.compare.load import Variant

#: Where an analysis leaves the tables of a run's first trace, seen from the run's folder.
TABLES_FOLDER: Final = Path("tables") / "trace0"

_PLACE: Final = tuple(name for name in SITE_KEY if name != "code")


def foretold(baseline: Variant, comparison: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, Any] | None:
    """`whatif` of comparison.json, from the baseline and its and the variant's entries there.

    None for the baseline, without a measured sync diff, or if the variant does away with no site. Otherwise
    `removed_per_step` and `added_per_step` say by how many syncs the step changes, `predicted_ms` and `measured_ms`
    what it takes unprofiled, `error` is predicted over measured less 1, and `reason` says why there is no prediction.
    """
    diff = variant.get("sync_diff")
    if not diff or diff["basis"] != "measured" or not comparison.get("step_ms") or not variant.get("step_ms"):
        return None
    gone = [site for site in diff["sites"] if site["baseline_count_per_step"] and not site["variant_count_per_step"]]
    if not gone:
        return None
    keys = {tuple(site.get(name) for name in _PLACE) for site in gone}
    replays = [_replay(run.path / TABLES_FOLDER, keys) for run in baseline.runs if run.measured is not None]
    ratios = [ratio for ratio, _, _ in replays if ratio is not None]
    reasons = [reason for _, _, reason in replays if reason is not None]
    predicted = float(np.median(ratios)) * comparison["step_ms"]["median"] if ratios else None
    measured = variant["step_ms"]["median"]
    return {
        "removed_per_step": sum(site["baseline_count_per_step"] for site in gone),
        "added_per_step": sum(
            max(site["variant_count_per_step"] - site["baseline_count_per_step"], 0) for site in diff["sites"]
        ),
        "predicted_ms": predicted,
        "measured_ms": measured,
        "error": None if predicted is None else predicted / measured - 1,
        "replay_error": max((fitted.error for _, fitted, _ in replays if fitted is not None), key=abs, default=None),
        "runs": len(ratios),
        "reason": reasons[0] if not ratios and reasons else None,
    }


def sync_prices(variant: Variant) -> dict[str, Any] | None:
    """`sync_prices` of comparison.json: what were gained a step were all of the variant's own syncs gone.

    In profiled ns a step: `all_saved_ns_per_step` by replay (None with a `reason` where that does not fit), and
    `all_ceiling_ns_per_step`; medians over the runs. None if no run has a GPU trace with steps.
    """
    found = [
        record
        for run in variant.measured
        if (traces := (run.summary or {}).get("traces")) and (record := traces[0].get("whatif")) and record.get("steps")
    ]
    if not found:
        return None
    saved = [record["all_saved_ns"] / record["steps"] for record in found if record["all_saved_ns"] is not None]
    return {
        "all_saved_ns_per_step": float(np.median(saved)) if saved else None,
        "all_ceiling_ns_per_step": float(np.median([record["all_ceiling_ns"] / record["steps"] for record in found])),
        "replay_error": max((record["error"] for record in found), key=abs),
        "unexplained_ns_per_step": float(np.median([record["unexplained_ns"] / record["steps"] for record in found])),
        "reason": None if saved else found[0]["reason"],
    }


def _replay(folder: Path, keys: Collection[tuple[Any, ...]]) -> tuple[float | None, WhatIf | None, str | None]:
    """The step's time without these sites over that with them, how well the replay fits, and why there is no ratio."""
    try:
        tables = StoredTables.read(folder)
        costs = pd.read_parquet(folder / "sync_costs.parquet")
    except (OSError, ValueError) as error:
        return None, None, f"the tables of its trace cannot be read ({error})"
    queues = queues_of(tables)
    fitted = fit(queues)
    if fitted.misfit is not None:
        return None, fitted, fitted.misfit
    places = [SITE_KEY.index(name) for name in _PLACE]
    gone: set[int] = set()
    for key, rows in rows_by_site(costs).items():
        if tuple(key[place] for place in places) in keys:
            gone |= rows
    return 1 - saved_ns(queues, gone, fitted) / fitted.replayed_ns, fitted, None
