"""A diff in a few lines of plain text."""

from collections import Counter
from collections.abc import Iterator

from steptrace.documents.diff import Change, ChangedFigure, Diff, DiffSide, KernelChange, OperatorChange, SyncChange
from steptrace.documents.step_figures import STEP_FIGURES, StepFigure
from steptrace.format import duration_ns, plural, signed_ns

#: How many rows of each topic are named; diff.json has all.
MOST_ROWS = 8

_TOTALS = {
    "step_ns": "step",
    "compute_ns": "compute",
    "exposed_comm_ns": "exposed communication",
    "exposed_memory_ns": "exposed memory",
    "idle_ns": "GPU idle",
}
_WORDS = {"operators": "operator", "kernels": "kernel", "syncs": "sync", "lines": "line"}
#: What a topic is read from: of neither side, and of one side alone.
_NEEDS = {
    "kernels": ("GPU work", "no GPU work"),
    "syncs": ("a call into a GPU's runtime", "no call into a GPU's runtime"),
    "lines": ("GPU work with Python stacks", "no GPU work with Python stacks"),
}
_STATUS = {"calls": "with other counts"}
_TIMES = {"kernels": ("device_ns",), "operators": ("host_self_ns", "device_ns"), "syncs": ("blocked_ns",)}


def in_words(found: Diff) -> str:
    """What changed: totals per step, the syncs, and of each topic the largest changes."""
    unit = found.unit
    lines = [f"A: {_side(found.a, unit)}", f"B: {_side(found.b, unit)}", *found.notes]
    lines += [f"{topic}: {unknown(found, topic)}" for topic in found.not_measured]
    if found.is_empty:
        return "\n".join([*lines, nothing_differs(found)])
    lines.append(f"per {unit}, medians:")
    lines += [
        f"  {words:24} {_change(total.a, total.b)}"
        for name, words in _TOTALS.items()
        if (total := found.totals[name]) is not None
    ]
    lines += [_figure(figure, changed) for figure in STEP_FIGURES if (changed := found.figures[figure.key]) is not None]
    a, b = found.sync_totals.a, found.sync_totals.b
    if a is not None and b is not None:
        lines.append(f"syncs, all {unit}s: {a.count} -> {b.count}, blocked {_change(a.blocked_ns, b.blocked_ns)}")
    for topic, times in _TIMES.items():
        if topic in found.not_measured:
            continue
        rows = found.rows(topic)
        counts = Counter(row.status for row in rows)
        lines.append(
            f"{topic}: "
            + (", ".join(f"{n} {_STATUS.get(status, status)}" for status, n in counts.items()) or "no change")
        )
        lines += [_row(row, times) for row in rows[:MOST_ROWS]]
    return "\n".join(lines)


def nothing_differs(found: Diff) -> str:
    """The sentence for a diff without a row, of the topics that both sides show."""
    topics = [word for topic, word in _WORDS.items() if topic not in found.not_measured]
    named = topics[0] if len(topics) == 1 else f"{', '.join(topics[:-1])} or {topics[-1]}"
    return f"no {named} differs per {found.unit}"


def unknown(found: Diff, topic: str) -> str:
    """Why a topic is not measured."""
    sides = found.not_measured[topic]
    of_neither, of_one = _NEEDS[topic]
    if len(sides) == 2:
        return f"not measured: neither trace holds {of_neither}"
    return f"not measured: {sides[0].upper()} holds {of_one}"


def _side(side: DiffSide, unit: str) -> str:
    traces = side.paths[0] if len(side.paths) == 1 else f"{len(side.paths)} traces, {side.paths[0]} ..."
    on = f", {', '.join(side.devices)}" if side.devices else ""
    return f"{traces} ({side.units} {unit}{'' if side.units == 1 else 's'}{on})"


def _row(row: Change, times: tuple[str, ...]) -> str:
    changes = [found.delta for name in times if (found := getattr(row, name)) is not None]
    return f"  {row.status:8} {signed_ns(max(changes, key=abs)):>10}  {_name(row)}  ({', '.join(_about(row))})"


def _name(row: Change) -> str:
    match row:
        case KernelChange():
            return row.short_name
        case OperatorChange():
            return row.name
        case SyncChange():
            return f"{row.kind} in {row.op}" if row.op else row.kind
    return str(row.function)


def _about(row: Change) -> Iterator[str]:
    if row.count is not None:
        before = f"{row.count.a:g} -> " if row.count.a != row.count.b else ""
        yield f"{before}{plural(row.count.b, 'call')}"
    match row:
        case SyncChange():
            yield from [f"{row.file}: {row.function}"] if row.file else []
            yield from [row.label] if row.label else []
        case KernelChange():
            yield from [f"by {place.operator}" for place in row.launched_by[:1] if place.operator]
    if isinstance(row, KernelChange | OperatorChange) and row.renamed_from:
        yield "renamed"


def _figure(figure: StepFigure, found: ChangedFigure) -> str:
    """A figure of a step on both sides."""
    unit = f" {figure.unit}" if figure.unit else ""
    status = f", {found.status}" if found.status else ""
    return f"  {figure.name:24} {found.a:.4g}{unit} -> {found.b:.4g}{unit}{status}"


def _change(a: float, b: float) -> str:
    return f"{duration_ns(a)} -> {duration_ns(b)}" + (f" ({_ratio(b / a)}x)" if a else "")


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 or not value else f"{value:.2g}"
