"""Predicted, warned of and traced: three counts of the same syncs, place by place, and why they differ.

A prediction follows the step without a GPU. PyTorch's own check (`torch.cuda.set_sync_debug_mode`) warns at the call
that waits. The trace holds the calls into the CUDA runtime that waited. None of the three sees everything.

Places are joined on file, line, pass and kind, not on the operator: the same wait is a `nonzero` to one of them and the
copy inside it to another.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from steptrace.documents.comparison import PredictedSite, SyncAgreement, UnknownPlace
from steptrace.trace.executing import same_file

#: Runtime calls that a trace names, as the kinds of a prediction.
_WAIT = re.compile(r"^(?:cuda|cu|hip)(Stream|Event|Device|Thread|Ctx)Synchronize\Z")
_WAITS_FOR = {"Stream": "stream", "Event": "event", "Device": "device", "Thread": "device", "Ctx": "device"}

Site = PredictedSite | UnknownPlace


@dataclass
class _Row:
    file: str | None
    line: int | None
    function: str | None
    code: str | None
    phase: str
    kind: str | None
    predicted: float = 0
    warned: float | None = None
    traced: float | None = None
    why: str | None = None

    def is_at(self, site: Site) -> bool:
        """Whether a site is this row's place in this row's pass."""
        if self.phase != _pass(site) or (self.file is None) != (site.file is None):
            return False
        if self.file is None or site.file is None:
            return True
        if not same_file(self.file, site.file):
            return False
        # Without recorded lines a trace knows a function by the line of its `def` alone.
        of_function = (site.code or "").startswith("def ")
        return self.line == site.line or (of_function and _last(self.function) == _last(site.function))


def agreement(
    predicted: Iterable[PredictedSite],
    warned: Iterable[PredictedSite] | None,
    traced: Iterable[PredictedSite] | None,
    unknown: Sequence[UnknownPlace],
) -> list[SyncAgreement]:
    """Each place with its counts per step and, where they differ, the likely reason.

    Args:
        predicted: the predicted sites.
        warned: those PyTorch warned of, without a kind; None if it was not asked.
        traced: those of the traces; None without a GPU's trace.
        unknown: what the prediction could not judge.

    Returns:
        A row a place; empty if there is nothing to compare the prediction with.
    """
    if warned is None and traced is None:
        return []
    rows: list[_Row] = []
    for site in predicted:
        _row_of(rows, site, _kind(site)).predicted += site.count_per_step or 0
    for site in traced or ():
        row = _row_of(rows, site, _kind(site))
        row.traced = (row.traced or 0) + (site.count_per_step or 0)
    for site in warned or ():
        _share_out(rows, site)
    for row in rows:
        row.traced = None if traced is None else row.traced or 0
        row.warned = None if warned is None else row.warned or 0
        row.why = _why(row, unknown)
    return [SyncAgreement(**asdict(row)) for row in rows]


def _row_of(rows: list[_Row], site: PredictedSite, kind: str | None) -> _Row:
    found = next((row for row in rows if row.is_at(site) and row.kind == kind), None)
    if found is None:
        found = _Row(site.file, site.line, site.function, site.code, phase=_pass(site), kind=kind)
        rows.append(found)
    return found


def _share_out(rows: list[_Row], site: PredictedSite) -> None:
    """Give a site's warnings, which tell no kind, to the waits known at its place; what is left is a row by itself."""
    left = site.count_per_step or 0
    for row in [row for row in rows if row.is_at(site)]:
        taken = min(left, max(max(row.predicted, row.traced or 0) - (row.warned or 0), 0))
        row.warned = (row.warned or 0) + taken
        left -= taken
    if left > 0:
        row = _row_of(rows, site, None)
        row.warned = (row.warned or 0) + left


def _last(function: str | None) -> str:
    return (function or "").rpartition(".")[2]


def _pass(site: Site) -> str:
    return "backward" if site.phase == "backward" else "forward"


def _kind(site: PredictedSite) -> str | None:
    match = _WAIT.match(site.kind or "")
    return _WAITS_FOR[match[1]] if match else site.kind


def _why(row: _Row, unknown: Sequence[UnknownPlace]) -> str | None:
    """The likely reason why a row's counts differ; None if those that were taken agree."""
    counts = {count for count in (row.warned, row.traced) if count is not None}
    if counts == {row.predicted}:
        return None
    seen = max(counts)
    if row.predicted == row.traced and row.warned is not None:
        if row.warned < row.traced:
            return "PyTorch's check does not see every wait; prediction and trace agree"
        return "PyTorch warns at the call, also where it then has nothing to wait for; prediction and trace agree"
    if row.predicted > seen:
        return "no such wait in these steps: it depends on the data, or the prediction's rule counts too many"
    if row.predicted < seen:
        known = next((place for place in unknown if row.is_at(place)), None)
        if known is not None:
            return f"the prediction could not judge {known.op}: {known.reason}"
        if row.file is None:
            return "outside the program's own lines: PyTorch or a library waits where a prediction does not look"
        return "the prediction knows of no wait here: its rule is wrong, or a library behind the operator waits"
    return "the trace holds no such call, although PyTorch warned of it"
