"""The section "Communication" of a study's page: what all-reduces should take, what they took, and what hid them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import escape

from steptrace.errors import RecordError
from steptrace.record import read_json
from steptrace.report import format as fmt
from steptrace.report.definitions import Definition
from steptrace.report.markup import Html, render
from steptrace.report.model import Study
from steptrace.report.svg import WIDTH, InlineSvg, shorten

#: From here on the measured time is far enough above the expected one to say so.
FAR_ABOVE: Final = 1.5

TERMS: Final = (
    Definition(
        "Expected",
        "One all-reduce of all gradients: parameter bytes × 2(n−1)/n ÷ bus bandwidth, for n ranks. The simpler formula "
        "beside it, parameters × 4 bytes ÷ bandwidth, leaves the factor out and counts float32 whatever is sent.",
    ),
    Definition(
        "Bus bandwidth",
        "Measured at the end of every run by all-reduces alone: message size × 2(n−1)/n ÷ the median time of the "
        "slowest rank. The expected time uses that of a message as large as all gradients.",
    ),
    Definition(
        "Measured, exposed, overlap",
        "Measured: the time of a profiled step with an all-reduce under way, each instant once, median over the ranks. "
        "Exposed: what of it no computation hid; on a GPU no compute kernel ran, on a CPU no operator on the "
        "training's threads. Overlap: the hidden share. Waiting for a later rank is part of both.",
    ),
    Definition(
        "Waited",
        "From a rank's arrival in an all-reduce to that of the last rank, each instant once; mean over the ranks. The "
        "straggler causes most of it, and is the same rank in every run.",
    ),
    Definition(
        "Buckets, all-reduces",
        "PyTorch gathers gradients in buckets and reduces each as a whole: as many all-reduces a step as buckets, "
        "unless a step takes several batches and each is reduced.",
    ),
    Definition(
        "Step time of several ranks",
        "That of the slowest rank, step by step. All ranks begin the timed block together.",
    ),
)

_TOP, _ROW, _BAR = 25.0, 46.0, 16.0


def communication(study: Study) -> Html | None:
    """Bars and a table of the variants that several ranks train; None without one."""
    try:
        raw = read_json(study.path)
    except RecordError:
        return None
    found = {v["name"]: v["communication"] for v in raw.get("variants", ()) if v.get("communication")}
    if not found:
        return None
    alone = [variant.name for variant in study.measured if variant.name not in found]
    bars = communication_bars(found)
    return render(
        "communication",
        found=found,
        first=next(iter(found.values())),
        alone=alone,
        sizes=sorted({tried["bytes"] for entry in found.values() for tried in entry["bandwidths"]}),
        rates={
            name: {tried["bytes"]: tried["bus_bytes_per_s"] for tried in entry["bandwidths"]}
            for name, entry in found.items()
        },
        bars=bars,
        sentences=_sentences(found),
        terms=TERMS,
    )


def _sentences(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What stands out, one sentence a variant at most."""
    told = []
    for name, entry in found.items():
        buckets, per_step, ratio = entry["buckets"], entry["all_reduces_per_step"], entry["measured_over_expected"]
        if buckets and per_step and entry["accumulate"] > 1 and per_step > 1.5 * buckets:
            times = fmt.count(round(per_step / buckets, 1))
            told.append(f"`{name}` reduces its gradients {times} times a step, where once would do.")
        elif ratio is not None and ratio >= FAR_ABOVE:
            hidden = "" if entry["overlap"] is None else f", {fmt.share(entry['overlap'])} of it hidden"
            told.append(f"`{name}` has all-reduces under way for {fmt.multiple(ratio)} the expected time{hidden}.")
    return told


def communication_bars(found: Mapping[str, Mapping[str, Any]]) -> InlineSvg | None:
    """A bar a variant, its hidden part pale and its exposed part full, with a mark at the expected time."""
    rows = [(n, e) for n, e in found.items() if e["measured_ms"] is not None and e["exposed_ms"] is not None]
    if not rows:
        return None
    longest = max(max(e["measured_ms"], e["expected_ms"] or 0) for _, e in rows) or 1.0
    height = _TOP + _ROW * len(rows)
    said = " ".join(
        f"{name}: expected {fmt.duration_ms(e['expected_ms'])}, measured {fmt.duration_ms(e['measured_ms'])}, exposed "
        f"{fmt.duration_ms(e['exposed_ms'])}."
        for name, e in rows
    )
    head = f'<svg role="img" aria-label="All-reduce per step. {escape(said)}" viewBox="0 0 {WIDTH:g} {height:g}"'
    parts = [f'{head} class="chart">', *_legend()]
    for index, (name, e) in enumerate(rows):
        parts += _bar(_TOP + index * _ROW, name, e, WIDTH / longest)
    return InlineSvg("".join([*parts, "</svg>"]))


_FULL, _PALE = 'fill="var(--orange)"', 'fill="var(--orange)" fill-opacity="0.35"'
_BOLD, _SMALL = 'font-weight="bold" font-size="12" fill="var(--ink)"', 'font-size="11" fill="var(--muted)"'


def _bar(top: float, name: str, entry: Mapping[str, Any], scale: float) -> list[str]:
    exposed, measured, expected = entry["exposed_ms"], entry["measured_ms"], entry["expected_ms"]
    hidden, y = measured - exposed, top + 20
    parts = [
        _text(0, top + 14, shorten(name), _BOLD),
        _text(WIDTH, top + 14, fmt.duration_ms(measured), f'text-anchor="end" {_SMALL}'),
        _rect((0, y, exposed * scale, _BAR), _FULL, f"exposed: {fmt.duration_ms(exposed)}"),
        _rect((exposed * scale, y, hidden * scale, _BAR), _PALE, f"hidden: {fmt.duration_ms(hidden)}"),
    ]
    if expected is not None:
        x = min(max(expected * scale, 1.0), WIDTH - 1)
        parts.append(_mark(x, y - 3, _BAR + 6, f"expected: {fmt.duration_ms(expected)}"))
    return parts


def _legend() -> Sequence[str]:
    return [
        _rect((0, 2, 11, 11), _FULL, "exposed"),
        _text(16, 12, "exposed", _SMALL),
        _rect((90, 2, 11, 11), _PALE, "hidden"),
        _text(106, 12, "hidden", _SMALL),
        _mark(180, 0, 15, "expected"),
        _text(189, 12, "expected at the measured bandwidth", _SMALL),
    ]


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>'


def _rect(place: tuple[float, float, float, float], style: str, title: str) -> str:
    x, y, width, height = place
    at = f'x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{height:g}"'
    return f"<rect {at} {style}><title>{escape(title)}</title></rect>"


def _mark(x: float, y: float, height: float, title: str) -> str:
    style = 'stroke="var(--ink)" stroke-width="2" fill="none"'
    return f'<path d="M{x:.2f} {y:g}v{height:g}" {style}><title>{escape(title)}</title></path>'
