"""Blocked time against what its removal saves, as a picture: two bars for each cell, as shares of a step."""

from typing import Final

from steptrace import format as fmt
from steptrace.documents.answer import SyncRemoval
from steptrace.documents.comparison import Comparison
from steptrace.documents.estimate import Band
from steptrace.findings.removals import removals_of_answer
from steptrace.report.charts.cells import Piece, bar_cell
from steptrace.report.charts.palette import NEUTRAL, colour_of
from steptrace.report.page.markup import Html, breakable, render, with_units
from steptrace.words.cells import cell_words
from steptrace.words.matrix import length_of_saving

#: The most cells that are drawn.
_MOST: Final = 6


def removals_picture(study: Comparison) -> Html:
    """For each cell how long syncs block the host, and what a step gains without them; empty if more differs."""
    rows = removals_of_answer(study)
    drawn = [row for row in rows if row.baseline_step_ms is not None]
    if not drawn:
        return Html("")
    return render(
        "study/removals",
        gpu=drawn[0].gpu,
        cells=[(with_units(_name(row)), _bars(row)) for row in drawn[:_MOST]],
        more=len(drawn) - _MOST if len(drawn) > _MOST else 0,
        keys=[(colour_of("sync"), "host blocked by syncs"), (NEUTRAL, "saved without them")],
    )


def _name(row: SyncRemoval) -> str:
    """The cell with the length of the baseline's step and how busy the GPU is in it."""
    step = "" if row.baseline_step_ms is None else f"step {fmt.band_ms(*row.baseline_step_ms)}"
    busy = "" if row.baseline_busy_pct is None else f", GPU busy {fmt.band_percent(*row.baseline_busy_pct)}"
    name = cell_words(row.cell) if row.cell else row.baseline
    return f"{name}: {step}{busy}"


def _bars(row: SyncRemoval) -> list[tuple[Html, str]]:
    """The two bars with their figures, on a scale from nothing to the whole of the baseline's step."""
    whole = _middle(row.baseline_step_ms or (1.0, 1.0))
    blocked = row.baseline_blocked_ms
    saved = row.saved_ms
    blocked_words, saved_words = fmt.band_ms(*blocked), length_of_saving(saved)
    return [
        (_bar(_middle(blocked) / whole, colour_of("sync"), f"host blocked {blocked_words}"), breakable(blocked_words)),
        (_bar(_middle(saved) / whole, NEUTRAL, f"saved {saved_words}"), breakable(saved_words)),
    ]


def _bar(share: float, colour: str, words: str) -> Html:
    return Html(bar_cell([Piece(min(max(share, 0.0), 1.0), colour, words)], 1.0))


def _middle(ends: Band) -> float:
    return (ends[0] + ends[1]) / 2
