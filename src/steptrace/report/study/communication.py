"""The section "Communication" of a study's page: what all-reduces should take, what they took, and what hid them."""

from collections.abc import Sequence
from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.documents.ranks import RankAllReduce
from steptrace.report.draw.bars import Bar, Piece, bars
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page.markup import Html, render

#: From here on the measured time is far enough above the expected one to say so.
FAR_ABOVE: Final = 1.5


def communication(study: Comparison) -> Html | None:
    """Bars and a table of the variants that several ranks train; None without one."""
    rows = [v for v in study.variants if v.communication is not None]
    if not rows:
        return None
    by_name = {v.name: v.communication for v in rows if v.communication is not None}
    return render(
        "study/communication",
        rows=rows,
        first=next(iter(by_name.values())),
        alone=[variant.name for variant in study.measured if variant.name not in by_name],
        sizes=sorted({tried.bytes for entry in by_name.values() for tried in entry.bandwidths}),
        rates={
            name: {tried.bytes: tried.bus_bytes_per_s for tried in entry.bandwidths} for name, entry in by_name.items()
        },
        bars=communication_bars(rows),
        sentences=_sentences(rows),
    )


def _traced(variant: VariantResult) -> RankAllReduce | None:
    return None if variant.ranks is None else variant.ranks.all_reduce


def _sentences(variants: Sequence[VariantResult]) -> list[str]:
    """What stands out, one sentence a variant at most."""
    sentences = []
    for variant in variants:
        of, traced = variant.communication, _traced(variant)
        if of is None or traced is None:
            continue
        buckets, per_step = len(of.bucket_bytes or ()), traced.count_per_step
        ratio = traced.measured_ns_per_step / of.expected_ns if traced.measured_ns_per_step and of.expected_ns else None
        if buckets and per_step and per_step > 1.5 * buckets:
            times = fmt.count(round(per_step / buckets, 1))
            sentences.append(f"`{variant.name}` reduces its gradients {times} times a step, where once would do.")
        elif ratio is not None and ratio >= FAR_ABOVE:
            hidden = "" if traced.overlap is None else f", {fmt.share(traced.overlap)} of it hidden"
            sentences.append(
                f"`{variant.name}` has all-reduces under way for {fmt.multiple(ratio)} the expected time{hidden}."
            )
    return sentences


def communication_bars(variants: Sequence[VariantResult]) -> InlineSvg | None:
    """A bar a variant, its hidden part pale and its exposed part full, with a mark at the expected time."""
    rows = [
        (v.name, of.expected_ns / fmt.NS_PER_MS, traced.measured_ns_per_step / fmt.NS_PER_MS, exposed / fmt.NS_PER_MS)
        for v in variants
        if (of := v.communication) is not None
        and (traced := _traced(v)) is not None
        and traced.measured_ns_per_step is not None
        and (exposed := traced.exposed_ns_per_step) is not None
    ]
    if not rows:
        return None
    legend = [("exposed", "orange", 1.0), ("hidden", "orange", 0.35), ("mark: expected", "ink", 1.0)]
    alt = " ".join(
        f"{name}: expected {fmt.duration_ms(expected)}, measured {fmt.duration_ms(measured)}, exposed "
        f"{fmt.duration_ms(exposed)}."
        for name, expected, measured, exposed in rows
    )
    shown = [_bar(name, measured, exposed, expected) for name, expected, measured, exposed in rows]
    return bars(shown, legend, f"All-reduce per step. {alt}")


def _bar(name: str, measured: float, exposed: float, expected: float) -> Bar:
    hidden = measured - exposed
    pieces = [
        Piece(exposed, "orange", f"exposed: {fmt.duration_ms(exposed)}"),
        Piece(hidden, "orange", f"hidden: {fmt.duration_ms(hidden)}", 0.35),
    ]
    return Bar(name, fmt.duration_ms(measured), pieces, expected)
