"""The chart of a study's all-reduces."""

from collections.abc import Mapping

from steptrace.documents.comparison import CommunicationOfVariant
from steptrace.report import format as fmt
from steptrace.report.draw.chart import COLOURS, INK
from steptrace.report.draw.parts import Bar, bars
from steptrace.report.draw.svg import InlineSvg

_EXPOSED, _HIDDEN = COLOURS["orange"], (COLOURS["orange"], 0.35)


def communication_bars(found: Mapping[str, CommunicationOfVariant]) -> InlineSvg | None:
    """A bar a variant, its hidden part pale and its exposed part full, with a mark at the expected time."""
    rows = [
        (name, e, e.measured_ms, e.exposed_ms)
        for name, e in found.items()
        if e.measured_ms is not None and e.exposed_ms is not None
    ]
    if not rows:
        return None
    legend = [("exposed", _EXPOSED), ("hidden", _HIDDEN), ("mark: expected", INK)]
    alt = " ".join(
        f"{name}: expected {fmt.duration_ms(e.expected_ms)}, measured {fmt.duration_ms(measured)}, exposed "
        f"{fmt.duration_ms(exposed)}."
        for name, e, measured, exposed in rows
    )
    shown = [_bar(name, measured, exposed, e.expected_ms) for name, e, measured, exposed in rows]
    return bars(shown, legend, f"All-reduce per step. {alt}")


def _bar(name: str, measured: float, exposed: float, expected: float | None) -> Bar:
    hidden = measured - exposed
    parts = [
        (exposed, _EXPOSED, f"exposed: {fmt.duration_ms(exposed)}"),
        (hidden, _HIDDEN, f"hidden: {fmt.duration_ms(hidden)}"),
    ]
    return Bar(name, fmt.duration_ms(measured), parts, expected)
