"""What changed from side A to side B, per step, judged against the spread over each side's steps.

A row is `slower` or `faster` if the quartiles of its time per step do not overlap between the sides and the medians
differ by at least 1 % and 1 us; with one step on a side there is no spread, and any such difference counts. Steps of
one window are not independent: this sorts differences, it proves none.

A new version of a library changes a kernel's template arguments, its parameters or its namespace; the kernel itself
stays. So kernels are matched from the exact name to what they compute, the coarser only for what is left. What is alike
on a level is merged: several names of one side can stand against one of the other.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from msgspec.structs import asdict
from numpy.typing import NDArray

from steptrace.analysis.common.kernel_names import short_name, telling_name
from steptrace.diff.notes import capture_notes, not_measured, notes, unprofiled_ns
from steptrace.diff.side import KEYS, MEASURES, TOTALS, Side
from steptrace.documents import diff as document
from steptrace.documents.step_figures import STEP_FIGURES, StepFigure

Key = tuple[Hashable, ...]

_NUMBER = re.compile(r"(?:\(\w[\w ]*\)\s*)?\b\d+[uUlL]*\b")
_DIGITS = re.compile(r"\d+")
_LAMBDA = re.compile(r"\{lambda\([^)]*\)#?\d*\}|\[lambda\([^)]*\) \(instance \d+\)\]")
_NAMESPACE = re.compile(r"\(anonymous namespace\)::|\{anonymous\}::|(?<=::)_\w+_(?:cu|cpp)_\w+::")


def normalised(name: str) -> str:
    """A kernel's name without numbers in its template arguments, lambdas' numbers, parameters and white space."""
    text = _LAMBDA.sub("lambda", _NAMESPACE.sub("", name))
    head = text if text.startswith(("Memcpy", "Memset")) else _without_parameters(text)
    return re.sub(r"\s+", "", _NUMBER.sub("#", head))


def _without_parameters(name: str) -> str:
    """What stands before the last pair of brackets at the end of a name."""
    if not name.endswith(")"):
        return name
    depth = 0
    for place in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[place], 0)
        if depth == 0:
            return name[:place] or name
    return name


#: From the exact name to the coarsest, what two kernels must share to be one.
KERNEL_LEVELS: tuple[Callable[[Key], Key], ...] = (
    lambda key: key,
    lambda key: (key[0], normalised(str(key[1]))),
    lambda key: (key[0], telling_name(str(key[1]))),
    # What it computes: numbers aside (tile sizes, a compiler's numbering).
    lambda key: (key[0], _DIGITS.sub("#", telling_name(str(key[1])))),
)

#: Autograd numbers its nodes by version: `AddmmBackward` became `AddmmBackward0`.
OPERATOR_LEVELS: tuple[Callable[[Key], Key], ...] = (
    lambda key: key,
    lambda key: (re.sub(r"(Backward)\d+\Z", r"\1", str(key[0])).rstrip("_"),),
)

EXACT: tuple[Callable[[Key], Key], ...] = (lambda key: key,)


def pair(
    a: Iterable[Key], b: Iterable[Key], levels: Iterable[Callable[[Key], Key]]
) -> list[tuple[tuple[Key, ...], tuple[Key, ...]]]:
    """Which keys of the two sides are one, each key once; an empty tuple stands for none on that side."""
    left_a, left_b = list(dict.fromkeys(a)), list(dict.fromkeys(b))
    pairs: list[tuple[tuple[Key, ...], tuple[Key, ...]]] = []
    for level in levels:
        groups: defaultdict[Key, tuple[list[Key], list[Key]]] = defaultdict(lambda: ([], []))
        for which, keys in enumerate((left_a, left_b)):
            for key in keys:
                groups[level(key)][which].append(key)
        both = [(tuple(ours), tuple(theirs)) for ours, theirs in groups.values() if ours and theirs]
        pairs += both
        matched_a = {key for ours, _ in both for key in ours}
        matched_b = {key for _, theirs in both for key in theirs}
        left_a = [key for key in left_a if key not in matched_a]
        left_b = [key for key in left_b if key not in matched_b]
    return pairs + [((key,), ()) for key in left_a] + [((), (key,)) for key in left_b]


#: Differences below both of these are none.
LEAST_SHARE = 0.01
LEAST_NS = 1_000


class _Topic(NamedTuple):
    """What a topic is ordered and judged by (times, the first the telling one), what two keys share, and its rows."""

    times: tuple[str, ...]
    levels: tuple[Callable[[Key], Key], ...]
    row: Callable[..., document.Change]


_TOPICS = {
    "kernels": _Topic(("device_ns",), KERNEL_LEVELS, document.KernelChange),
    "operators": _Topic(("host_self_ns", "device_ns"), OPERATOR_LEVELS, document.OperatorChange),
    "syncs": _Topic(("blocked_ns",), EXACT, document.SyncChange),
    "lines": _Topic(("device_ns",), EXACT, document.LineChange),
}

Values = NDArray[np.int64]
Measured = NDArray[np.int64] | NDArray[np.float64]


def diff(a: Side, b: Side) -> document.Diff:
    """The content of diff.json: the sides, their totals, and every row of every topic that changed.

    The diff of a side with itself has no rows. A topic that a side could not show has none either, and stands in
    `not_measured` with those sides.
    """
    unknown = not_measured(a, b)
    rows: dict[str, Any] = {topic: () if topic in unknown else tuple(_changes(a, b, topic)) for topic in _TOPICS}
    return document.Diff(
        unit="trace" if a.whole_traces else "step",
        a=document.DiffSide(tuple(map(str, a.paths)), a.ranks, a.units, a.devices),
        b=document.DiffSide(tuple(map(str, b.paths)), b.ranks, b.units, b.devices),
        totals={name: measure(_total(a, name), _total(b, name)) for name in TOTALS},
        figures={figure.key: _figure(figure, a, b) for figure in STEP_FIGURES},
        sync_totals=document.SyncTotals(a.sync_total, b.sync_total),
        not_measured=unknown,
        unprofiled_step_ns=measure(unprofiled_ns(a), unprofiled_ns(b)),
        notes=(*capture_notes(a, b), *notes(a, b)),
        **rows,
    )


def measure(a: Measured | None, b: Measured | None) -> document.Measure | None:
    """One measure per unit on both sides; None where a side has no such measure."""
    if a is None or b is None or len(a) == 0 or len(b) == 0:
        return None
    (low_a, mid_a, high_a), (low_b, mid_b, high_b) = (np.percentile(v, (25, 50, 75)).tolist() for v in (a, b))
    return document.Measure(
        a=mid_a,
        b=mid_b,
        a_quartiles=(low_a, high_a),
        b_quartiles=(low_b, high_b),
        delta=mid_b - mid_a,
        ratio=mid_b / mid_a if mid_a else None,
        changed=low_b > high_a or low_a > high_b,
    )


def _figure(figure: StepFigure, a: Side, b: Side) -> document.ChangedFigure | None:
    """The `measure` of a figure, and whether the change is for the better."""
    found = measure(a.figures[figure.key], b.figures[figure.key])
    if found is None:
        return None
    status: Literal["better", "worse"] | None = None
    if figure.better is not None and found.changed:
        status = "better" if (found.delta < 0) == (figure.better == "lower") else "worse"
    return document.ChangedFigure(**asdict(found), status=status)


def _total(side: Side, name: str) -> Values | None:
    column = side.totals[name]
    return None if column.isna().any() else column.to_numpy(dtype=np.int64)


def _series(side: Side, topic: str) -> dict[Key, dict[str, Values]]:
    """For each key of a topic its measures, one value per unit, 0 where the key does not occur."""
    table = side.tables[topic]
    found: dict[Key, dict[str, Values]] = {}
    keys = table[list(KEYS[topic])].astype(object).where(table[list(KEYS[topic])].notna(), None)
    units = table["unit"].to_numpy()
    columns = {name: table[name].to_numpy(dtype=np.int64) for name in MEASURES[topic]}
    for row, key in enumerate(keys.itertuples(index=False, name=None)):
        values = found.setdefault(key, {m: np.zeros(side.units, dtype=np.int64) for m in MEASURES[topic]})
        unit = int(units[row])
        for name in MEASURES[topic]:
            values[name][unit] += columns[name][row]
    return found


def _changes(a: Side, b: Side, topic: str) -> list[document.Change]:
    """The rows of a topic that changed, the largest change first."""
    series_a, series_b = _series(a, topic), _series(b, topic)
    launches = [_by_kernel(a), _by_kernel(b)] if topic == "kernels" else []
    rows: list[tuple[float, document.Change]] = []
    for keys_a, keys_b in pair(series_a, series_b, _TOPICS[topic].levels):
        measures = {
            name: measure(_sum(series_a, keys_a, name, a.units), _sum(series_b, keys_b, name, b.units))
            if name != "device_ns" or (a.gpu and b.gpu)
            else None
            for name in MEASURES[topic]
        }
        status = _status(measures, topic, keys_a, keys_b)
        if status is not None:
            told = _named(topic, keys_a, keys_b)
            if launches:
                told["launched_by"] = _launched_by(launches, (keys_a, keys_b), (a.units, b.units))
            times = [found.delta for time in _TOPICS[topic].times if (found := measures[time]) is not None]
            rows.append((max(map(abs, times)), _TOPICS[topic].row(status=status, **told, **measures)))
    rows.sort(key=lambda row: -row[0])
    return [row for _, row in rows]


def _sum(series: dict[Key, dict[str, Values]], keys: tuple[Key, ...], name: str, units: int) -> Values:
    return sum((series[key][name] for key in keys), np.zeros(units, dtype=np.int64))


def _named(topic: str, keys_a: tuple[Key, ...], keys_b: tuple[Key, ...]) -> dict[str, Any]:
    """The row's keys as on side B (A, where B lacks it), and what A calls it if that is another name."""
    shown = sorted(keys_b or keys_a, key=str)
    columns = ("class_" if column == "class" else column for column in KEYS[topic])
    names: dict[str, Any] = dict(zip(columns, shown[0], strict=True))
    if topic == "kernels":
        names["short_name"] = short_name(str(names["name"]))
    if topic in ("kernels", "operators"):
        names["other_names"] = tuple(key[-1] for key in shown[1:])
        renamed = bool(keys_a and keys_b) and set(keys_a) != set(keys_b)
        names["renamed_from"] = tuple(sorted(str(key[-1]) for key in keys_a)) if renamed else None
    return names


def _status(
    measures: Mapping[str, document.Measure | None], topic: str, keys_a: tuple[Key, ...], keys_b: tuple[Key, ...]
) -> document.Status | None:
    if not keys_a or not keys_b:
        return "added" if keys_b else "removed"
    deltas = [
        found.delta
        for name in _TOPICS[topic].times
        if (found := measures[name]) is not None
        and found.changed
        and abs(found.delta) >= max(LEAST_NS, LEAST_SHARE * found.a)
    ]
    if total := sum(deltas):
        return "slower" if total > 0 else "faster"
    count = measures["count"]
    return "calls" if count is not None and count.changed and count.delta else None


def _launched_by(
    launches: Sequence[Mapping[Key, Sequence[tuple[Key, int]]]],
    keys: tuple[tuple[Key, ...], tuple[Key, ...]],
    units: tuple[int, int],
) -> tuple[document.LaunchedBy, ...]:
    """The operators and lines that launched a kernel: mean time per unit on both sides."""
    shares: defaultdict[Key, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for side in (0, 1):
        for key in keys[side]:
            for place, device_ns in launches[side][key]:
                shares[place][side] += device_ns / units[side]
    ordered = sorted(shares.items(), key=lambda item: -abs(item[1][1] - item[1][0]))
    return tuple(document.LaunchedBy(*place, *of_sides) for place, of_sides in ordered)  # type: ignore[arg-type]


def _by_kernel(side: Side) -> defaultdict[Key, list[tuple[Key, int]]]:
    table = side.tables["attribution"]
    sums = table.groupby(list(KEYS["attribution"]), dropna=False, sort=True, as_index=False)["device_ns"].sum()
    found: defaultdict[Key, list[tuple[Key, int]]] = defaultdict(list)
    for row in sums.itertuples(index=False):
        place = tuple(None if pd.isna(value) else value for value in (row.operator, row.file, row.function))
        found[row[0], row.kernel].append((place, int(row.device_ns)))
    return found
