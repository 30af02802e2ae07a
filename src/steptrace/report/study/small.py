"""A study's picture in small, for the index: a row a variant, all on one scale."""

from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.overview import part_name
from steptrace.documents.variant import VariantResult
from steptrace.findings.estimated import estimate_of, estimated_gpus, leads
from steptrace.report.charts.cells import Piece, bar_cell, difference_cell, pieces_of
from steptrace.report.charts.palette import COLOURS, NEUTRAL, colour_of
from steptrace.report.charts.scale import Scale
from steptrace.report.page.markup import Html, breakable, render
from steptrace.words.estimate import saved_words
from steptrace.words.pictures import NOT_PROFILED

#: The most variants that are drawn.
_MOST: Final = 6
#: A part with a smaller share of each step is not seen, and has no key.
_LEAST_SEEN: Final = 0.01


def small_picture(study: Comparison) -> Html:
    """Bars of the parts of each step; if an estimate leads, the time that each variant saves; otherwise nothing."""
    rows, more, title = _saved(study) if leads(study) else _step_times(study)
    if not rows:
        return Html("")
    return render("study/small", rows=rows, more=more, title=title, keys=[] if leads(study) else _keys(study))


def _keys(study: Comparison) -> list[tuple[str, str]]:
    """Colour and name of the parts that are seen; bars of variants without a profile have a name, too."""
    shown = _chosen(study, list(study.measured))
    seen = {
        name
        for variant in shown
        if variant.overview is not None
        for name, ns in variant.overview.of_step.items()
        if ns >= _LEAST_SEEN * sum(variant.overview.of_step.values())
    }
    keys = [(colour_of(name), part_name(name)) for name in COLOURS if name in seen]
    unprofiled = [(NEUTRAL, NOT_PROFILED)] if any(_is_whole(variant) for variant in shown) else []
    return keys + unprofiled


_Rows = tuple[list[tuple[str, str, str]], int, str]


def _step_times(study: Comparison) -> _Rows:
    shown = _chosen(study, list(study.measured))
    times = study.step_times_ms
    longest = max((times[variant.name] for variant in shown), default=0.0)
    rows: list[tuple[str, str, str]] = []
    for variant in shown:
        ms = times[variant.name]
        drawn = bar_cell(_pieces(variant, ms), longest * fmt.NS_PER_MS)
        rows.append((breakable(variant.name), drawn, fmt.duration_ms(ms)))
    return rows, len(study.measured) - len(shown), "Step time"


def _pieces(variant: VariantResult, ms: float) -> list[Piece]:
    """The parts of its profiled step, together as long as an unprofiled one; without a profile one piece."""
    if variant.overview is None or _is_whole(variant):
        return [Piece(ms * fmt.NS_PER_MS, NEUTRAL, fmt.duration_ms(ms))]
    parts = variant.overview.of_step
    whole = sum(parts.values())
    return pieces_of({name: ns / whole * ms * fmt.NS_PER_MS for name, ns in parts.items()})


def _is_whole(variant: VariantResult) -> bool:
    """Whether nothing is known about the parts of its step."""
    return variant.overview is None or not sum(variant.overview.of_step.values())


def _saved(study: Comparison) -> _Rows:
    gpu = estimated_gpus(study)[0]
    of_gpu = {variant.name: estimate_of(variant, gpu) for variant in study.variants}
    pairs = {
        name: estimate.difference
        for name, estimate in of_gpu.items()
        if estimate is not None and estimate.difference is not None
    }
    if not pairs:
        return [], 0, ""
    shown = _chosen(study, [variant for variant in study.variants if variant.name in pairs])
    scale = Scale.with_zero([end for variant in shown for end in pairs[variant.name].saved_ms])
    rows: list[tuple[str, str, str]] = []
    for variant in shown:
        pair = pairs[variant.name]
        is_told = pair.is_faster or pair.is_slower
        words = saved_words(pair)
        drawn = difference_cell(scale, pair.saved_ms, "told" if is_told else "open", f"{variant.name}: {words}")
        rows.append((breakable(variant.name), drawn, words))
    return rows, len(pairs) - len(shown), f"Saved per step on {gpu}, estimated"


def _chosen(study: Comparison, variants: list[VariantResult]) -> list[VariantResult]:
    """The first variants, and among them the fastest one; in the study's order."""
    if len(variants) <= _MOST:
        return variants
    best = study.fastest()
    first = [variant for variant in variants if variant is not best][: _MOST - (best in variants)]
    return [variant for variant in variants if variant in first or variant is best]
