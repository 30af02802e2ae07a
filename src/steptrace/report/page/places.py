"""Places in the code where the host waits for the device, as a page shows them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from steptrace.documents.comparison import Place, PredictedSite, SyncAgreement, SyncChange, SyncSiteOfVariant
from steptrace.documents.comparison.syncs import BATCH_COPY, is_batch_copy
from steptrace.documents.finding import Source
from steptrace.documents.summary import SyncSite

_Measured = TypeVar("_Measured", SyncSite, SyncSiteOfVariant)


def place(at: Place | Source | SyncAgreement | SyncSite) -> str | None:
    """`file:line` with the last two folders of a long path."""
    if at.file is None:
        return None
    parts = Path(at.file).parts
    short = at.file if len(parts) <= 3 else "…/" + "/".join(parts[-3:])
    return short if at.line is None else f"{short}:{at.line}"


def unplaced(site: PredictedSite | SyncAgreement | SyncChange | SyncSite) -> str:
    """What stands in for a sync's place that has no line of the program."""
    if isinstance(site, SyncAgreement):  # it does not say under which label
        return "line unknown"
    return BATCH_COPY if is_batch_copy(site) else "line unknown"


def rank_sites(sites: Sequence[_Measured]) -> list[_Measured]:
    """The costliest first: by exposed idle, then blocked time, then count."""
    return sorted(
        sites,
        key=lambda s: (-(s.exposed_idle_ns_per_step or 0), -(s.blocked_ns_per_step or 0), -(s.count_per_step or 0)),
    )


def rank_predicted(sites: Sequence[PredictedSite]) -> list[PredictedSite]:
    """The most frequent first."""
    return sorted(sites, key=lambda site: -(site.count_per_step or 0))
