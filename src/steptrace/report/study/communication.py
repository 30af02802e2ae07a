"""The section "Communication" of a study's page: what all-reduces should take, what they took, and what hid them."""

from collections.abc import Mapping
from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import CommunicationOfVariant, Comparison
from steptrace.report.draw.bars import Bar, Piece, bars
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page.markup import Html, render

#: From here on the measured time is far enough above the expected one to say so.
FAR_ABOVE: Final = 1.5


def communication(study: Comparison) -> Html | None:
    """Bars and a table of the variants that several ranks train; None without one."""
    found = {v.name: v.communication for v in study.variants if v.communication is not None}
    if not found:
        return None
    alone = [variant.name for variant in study.measured if variant.name not in found]
    bars = communication_bars(found)
    return render(
        "study/communication",
        found=found,
        first=next(iter(found.values())),
        alone=alone,
        sizes=sorted({tried.bytes for entry in found.values() for tried in entry.bandwidths}),
        rates={
            name: {tried.bytes: tried.bus_bytes_per_s for tried in entry.bandwidths} for name, entry in found.items()
        },
        bars=bars,
        sentences=_sentences(found),
    )


def _sentences(found: Mapping[str, CommunicationOfVariant]) -> list[str]:
    """What stands out, one sentence a variant at most."""
    told = []
    for name, entry in found.items():
        buckets, per_step, ratio = entry.buckets, entry.all_reduces_per_step, entry.measured_over_expected
        if buckets and per_step and entry.accumulate > 1 and per_step > 1.5 * buckets:
            times = fmt.count(round(per_step / buckets, 1))
            told.append(f"`{name}` reduces its gradients {times} times a step, where once would do.")
        elif ratio is not None and ratio >= FAR_ABOVE:
            hidden = "" if entry.overlap is None else f", {fmt.share(entry.overlap)} of it hidden"
            told.append(f"`{name}` has all-reduces under way for {fmt.multiple(ratio)} the expected time{hidden}.")
    return told


def communication_bars(found: Mapping[str, CommunicationOfVariant]) -> InlineSvg | None:
    """A bar a variant, its hidden part pale and its exposed part full, with a mark at the expected time."""
    rows = [
        (name, e, e.measured_ms, e.exposed_ms)
        for name, e in found.items()
        if e.measured_ms is not None and e.exposed_ms is not None
    ]
    if not rows:
        return None
    legend = [("exposed", "orange", 1.0), ("hidden", "orange", 0.35), ("mark: expected", "ink", 1.0)]
    alt = " ".join(
        f"{name}: expected {fmt.duration_ms(e.expected_ms)}, measured {fmt.duration_ms(measured)}, exposed "
        f"{fmt.duration_ms(exposed)}."
        for name, e, measured, exposed in rows
    )
    shown = [_bar(name, measured, exposed, e.expected_ms) for name, e, measured, exposed in rows]
    return bars(shown, legend, f"All-reduce per step. {alt}")


def _bar(name: str, measured: float, exposed: float, expected: float | None) -> Bar:
    hidden = measured - exposed
    pieces = [
        Piece(exposed, "orange", f"exposed: {fmt.duration_ms(exposed)}"),
        Piece(hidden, "orange", f"hidden: {fmt.duration_ms(hidden)}", 0.35),
    ]
    return Bar(name, fmt.duration_ms(measured), pieces, expected)
