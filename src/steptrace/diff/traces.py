"""Compares two sides, named A and B: matches their kernels and operators, and finds what changed.

A diff has figures only. A summary has no spread over runs, so nothing is called slower or faster here. Claims about
speed come from unprofiled steps of several runs, in `steptrace compare`.

A new version of a library can change a kernel's template arguments, parameters or namespace without changing the
kernel. So names are matched in levels, from the exact name to what the kernel computes; a coarser level is for the
names that are left. Names that are equal on a level are merged, so several names of one side can match one name of the
other.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from steptrace.analysis.common.kernel_names import full_short_name
from steptrace.diff.runs import measured_diff
from steptrace.diff.sides import Side
from steptrace.documents.base import columns_of, name_of
from steptrace.documents.diff import TOPICS, Diff, DiffCause, DiffNote, DiffSide, Needs, Pair, RowChange
from steptrace.documents.kernels import KernelName
from steptrace.documents.note import Note
from steptrace.documents.overview import Overview, TopOperator
from steptrace.documents.sides import RowPair, SideRows, join
from steptrace.documents.steps import STEP_FIGURES
from steptrace.documents.subject import subjects_of
from steptrace.documents.summary import TraceSummary
from steptrace.documents.syncs import SyncSite
from steptrace.limits import NOISE_FLOOR, PROFILER_OVERHEAD
from steptrace.trace import names as naming
from steptrace.trace.decode import path_text
from steptrace.words.diff import cause_in_words, note_in_words

#: The parts that two names must share to match.
Level = Callable[[str], str]
#: The times per step of rows that can be the cause of a difference.
_TIMES: Final = {
    column.name
    for kind in (KernelName, TopOperator, SyncSite)
    for column in columns_of(kind)
    if column.total and column.unit == "ns"
}
#: The part with the idle time whose cause a trace cannot tell.
_IDLE_UNKNOWN: Final = "idle_unknown"
#: The programs count as different if kernels with names that both sides have take less than this share of the time.
LEAST_ALIKE: Final = 0.25


def diff(a: Side, b: Side, gpus: Sequence[str] = ()) -> Diff:
    """The content of diff.json: the totals of both sides, and every row that changed.

    Args:
        a: what to compare with.
        b: what is compared.
        gpus: GPUs to estimate both sides on, where both are results of `steptrace run`.

    Raises:
        ConfigError: there is no such GPU.
    """
    gpu = a.has_gpu and b.has_gpu
    kernels = _changes(_rows(a, "kernels"), _rows(b, "kernels"), KERNEL_LEVELS) if gpu else ()
    profiled = bool(a.traces and b.traces)
    operators = (
        _changes(SideRows(a.operators, a.steps), SideRows(b.operators, b.steps), OPERATOR_LEVELS) if profiled else ()
    )
    has_syncs = gpu and a.has_syncs and b.has_syncs
    syncs = _changes(*_of_one_runtime(_rows(a, "syncs.sites"), _rows(b, "syncs.sites"))) if has_syncs else ()
    has_lines = gpu and a.has_lines and b.has_lines
    has: dict[Needs, bool] = {
        "gpu_work": gpu,
        "gpu_work_with_lines": has_lines,
        "gpu_work_with_syncs": has_syncs,
        "profiled_steps": profiled,
    }
    lines = _changes(_rows(a, "program.by_line"), _rows(b, "program.by_line")) if has_lines else ()
    tables = {
        name: tuple(_row(change, name_of(change.row)) for change in _differing(_rows(a, name), _rows(b, name)))
        for name, needs_gpu in _compared_tables()
        if has["gpu_work" if needs_gpu else "profiled_steps"] and a.has_table(name) and b.has_table(name)
    }
    step, parts = _step(a, b)
    rows = {"idle_sync": syncs, "": kernels if gpu else operators}
    cause = _cause(step, parts, rows, whole=not (a.steps and b.steps))
    notes = tuple(_notes(a, b))
    figures = {f.name: Pair(a=_mean(a, f.name), b=_mean(b, f.name)) for f in STEP_FIGURES}
    return Diff(
        a=_described(a),
        b=_described(b),
        cause=cause_in_words(cause),
        notes=tuple(map(note_in_words, notes)),
        cause_figures=cause,
        remarks=notes,
        step_ns=step,
        parts_ns=parts,
        figures=figures,
        not_measured=tuple(topic.name for topic in TOPICS if not has[topic.needs]),
        kernels=kernels,
        operators=operators,
        syncs=syncs,
        lines=lines,
        tables={name: changes for name, changes in tables.items() if changes},
        measured=measured_diff((a.runs, b.runs), (a.traces, b.traces), gpus),
    )


def _compared_tables() -> Iterator[tuple[str, bool]]:
    """The subjects whose tables are compared, and whether each needs GPU work on both sides."""
    return ((subject.name, subject.needs_gpu) for subject in subjects_of(TraceSummary) if "compared" in subject.traits)


def _rows(side: Side, path: str) -> SideRows[Any]:
    rows = []
    for trace in side.traces:
        value: Any = trace
        for name in path.split("."):
            value = getattr(value, name)
        rows += list(value)
    return SideRows(rows, side.steps)


def _changes(a: SideRows[Any], b: SideRows[Any], levels: Sequence[Level] = ()) -> tuple[RowChange, ...]:
    """The rows that differ, the largest change first; with `levels` rows of other names are matched."""
    renamed: dict[str, tuple[str, ...]] = {}
    if levels:
        same = pair((row.name for row in a.rows), (row.name for row in b.rows), levels)
        canon = {name: theirs[0] for ours, theirs in same for name in (*ours, *theirs)}
        renamed = {theirs[0]: tuple(sorted(ours)) for ours, theirs in same if set(ours) != set(theirs)}
        a, b = (SideRows([replace(r, name=canon.get(r.name, r.name)) for r in s.rows], s.steps) for s in (a, b))
    return tuple(_row(change, _name(change), renamed) for change in _differing(a, b))


def _of_one_runtime(a: SideRows[SyncSite], b: SideRows[SyncSite]) -> tuple[SideRows[SyncSite], SideRows[SyncSite]]:
    """The sites of syncs of both sides, with the same kinds if the sides have GPUs of different makers.

    `cudaDeviceSynchronize` on one side then matches `hipDeviceSynchronize` on the other, and a copy that waits by
    itself matches a copy that is followed by a wait.
    """
    runtimes = [{naming.runtime_prefix(row.kind or "") for row in side.rows} - {""} for side in (a, b)]
    if not all(runtimes) or runtimes[0] & runtimes[1]:
        return a, b
    sides = [
        SideRows([replace(row, kind=naming.kind_of_sync(row.kind or "")) for row in side.rows], side.steps)
        for side in (a, b)
    ]
    return sides[0], sides[1]


def _differing(a: SideRows[Any], b: SideRows[Any]) -> Iterator[RowPair[Any]]:
    return (change for change in join(a, b) if change.differs or None in (change.a, change.b))


def _name(change: RowPair[Any]) -> str:
    names = (getattr(change.row, key, None) for key in ("name", "op", "function", "kind"))
    return next((str(name) for name in names if name), "")


def _row(change: RowPair[Any], name: str, renamed: Mapping[str, tuple[str, ...]] | None = None) -> RowChange:
    row = change.row
    file = getattr(row, "file", None)
    function = getattr(row, "function", None)
    return RowChange(
        name=name,
        place=getattr(row, "label", None) if file is None else f"{file}: {function}",
        renamed_from=(renamed or {}).get(name, ()),
        in_a=change.a is not None,
        in_b=change.b is not None,
        figures={key: Pair(a=a, b=b) for key, (a, b) in change.figures.items()},
    )


def _step(a: Side, b: Side) -> tuple[Pair, dict[str, Pair]]:
    """The mean step of each side, or the whole trace, and its parts, where both have the same kind."""
    # Waiting for other ranks is a part of its own if both sides hold several ranks' traces.
    apart = all(
        trace.overview is not None and trace.overview.exposed_wait_ns is not None
        for side in (a, b)
        for trace in side.traces
    )
    sides = [_parts(side, waiting_apart=apart) for side in (a, b)]
    lengths = [_length(side) for side in (a, b)]
    present = [side for side in sides if side is not None]
    if len(present) < 2 or present[0][0] != present[1][0]:
        return Pair(a=lengths[0], b=lengths[1]), {}
    (_, left), (_, right) = present
    names = dict.fromkeys([*left, *right])
    parts = {name: Pair(a=left.get(name, 0.0), b=right.get(name, 0.0)) for name in names}
    whole_a, whole_b = (sum(ns for ns in side.values() if ns is not None) for side in (left, right))
    return Pair(a=whole_a, b=whole_b), parts


def _length(side: Side) -> float | None:
    """The mean length of a step, or of the whole trace; None without a trace."""
    if not side.traces:
        return None
    return sum(trace.window_ns for trace in side.traces) / (side.steps or len(side.traces))


def _parts(side: Side, *, waiting_apart: bool) -> tuple[str, dict[str, float | None]] | None:
    """The kind of a side's parts, and the parts of its mean step; None for one that a trace cannot tell."""
    divided = [trace.overview for trace in side.traces if trace.overview is not None]
    if len(divided) < len(side.traces) or len({division.kind for division in divided}) != 1 or not side.steps:
        return None
    by_step = [_with_waiting_apart(division) if waiting_apart else division.parts_ns for division in divided]
    names = dict.fromkeys(name for parts in by_step for name in parts)
    return divided[0].kind, {name: _sum([parts.get(name, 0) for parts in by_step], side.steps) for name in names}


def _sum(values: Sequence[int | None], steps: int) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / steps if len(known) == len(values) else None


def _with_waiting_apart(overview: Overview) -> dict[str, int | None]:
    """The parts of a step, with exposed communication as waiting for other ranks and transfer."""
    parts = dict(overview.parts_ns)
    communication = parts.pop("exposed_comm", 0) or 0
    waiting = min(overview.exposed_wait_ns or 0, communication)
    return {**parts, "exposed_wait": waiting, "exposed_transfer": communication - waiting}


def _mean(side: Side, key: str) -> float | None:
    values = [getattr(trace, key) for trace in side.traces]
    return None if None in values or not values else sum(values) / len(values)


def _described(side: Side) -> DiffSide:
    names = dict.fromkeys(trace.device_name for trace in side.traces if trace.device_name)
    return DiffSide(paths=tuple(trace.path for trace in side.traces), steps=side.steps, devices=tuple(names))


def _cause(step: Pair, parts: Mapping[str, Pair], rows: Mapping[str, Sequence[RowChange]], *, whole: bool) -> DiffCause:
    """The step times of both sides, and the largest cause of their difference: a part, and a row of that part."""
    if step.a is None or step.b is None:
        return DiffCause(lacking="both" if step.a is step.b else "a" if step.a is None else "b")
    delta = step.b - step.a
    cause = DiffCause(a_ns=step.a, b_ns=step.b, whole_traces=whole)
    if abs(delta) < NOISE_FLOOR * max(step.a, 1):
        return replace(cause, is_same=True)
    parts = _known_of_both(parts)
    part = max(parts, key=lambda name: _delta(parts[name]) * delta, default=None)
    if part is not None and _delta(parts[part]) * delta > 0:
        cause = replace(cause, part=part, part_ns=_delta(parts[part]))
    row = max(rows.get(part or "", rows[""]), key=lambda row: _longest(row) * delta, default=None)
    if row is not None and _longest(row) * delta > 0:
        cause = replace(cause, row=row.name, place=row.place, row_ns=_longest(row))
    return cause


def _known_of_both(parts: Mapping[str, Pair]) -> Mapping[str, Pair]:
    """The parts that both sides can tell. Idle time with a cause that one of them cannot tell is of unknown cause."""
    untold = [name for name, pair in parts.items() if pair.a is None or pair.b is None]
    if not untold:
        return parts
    pairs = [parts[name] for name in (*untold, _IDLE_UNKNOWN) if name in parts]
    idle = Pair(a=sum(pair.a or 0.0 for pair in pairs), b=sum(pair.b or 0.0 for pair in pairs))
    return {name: pair for name, pair in parts.items() if name not in untold} | {_IDLE_UNKNOWN: idle}


def _delta(figure: Pair) -> float:
    return 0.0 if figure.a is None or figure.b is None else figure.b - figure.a


def _longest(row: RowChange) -> float:
    """The largest change of a time per step of a row, in ns."""
    return max((_delta(figure) for name, figure in row.figures.items() if name in _TIMES), key=abs, default=0.0)


def _notes(a: Side, b: Side) -> Iterator[DiffNote]:
    """The reasons why the two sides are hard to compare."""
    for name, side in (("A", a), ("B", b)):
        for path, error in side.damaged.items():
            yield DiffNote("trace_not_read", {"side": name, "file": path_text(path), "reason": error.what})
        yield from _cautions(name, side)
    gpus = [sorted(_described(side).devices) for side in (a, b)]
    if all(gpus) and gpus[0] != gpus[1]:
        yield DiffNote("other_gpus", {"a": gpus[0], "b": gpus[1]})
    if a.traces and b.traces and len(a.traces) != len(b.traces):
        yield DiffNote("other_numbers_of_traces", {"a": len(a.traces), "b": len(b.traces)})
    if a.has_gpu and b.has_gpu and (alike := min(_alike(a, b), _alike(b, a))) < LEAST_ALIKE:
        yield DiffNote("few_kernels_of_both", {"share": alike})
    if a.traces and b.traces and min(a.steps, b.steps) < 2:
        yield DiffNote("few_steps", {})
    before, after = _mean(a, "unprofiled_step_ns"), _mean(b, "unprofiled_step_ns")
    if before and after:
        if a.runs is None or b.runs is None:
            yield DiffNote("unprofiled_steps", {"a_ns": before, "b_ns": after})
        profiled = _step(a, b)[0]
        ratio = (profiled.b or 1.0) / (profiled.a or 1.0) / (after / before)
        if not 1 / PROFILER_OVERHEAD < ratio < PROFILER_OVERHEAD:
            yield DiffNote("profiler_slows_one_side", {"b_over_a": ratio})


def _cautions(name: str, side: Side) -> Iterator[DiffNote]:
    """What to know of a side's traces, each kind once: several traces may have it, each with figures of its own."""
    found: dict[tuple[str, str | None], list[tuple[TraceSummary, Note]]] = {}
    for trace in side.traces:
        for caution in trace.quality.cautions:
            found.setdefault((caution.code, caution.figures.get("check")), []).append((trace, caution))
    for rows in found.values():
        trace, caution = rows[0]
        yield DiffNote(
            "trace_note",
            {
                "side": name,
                "code": caution.code,
                "figures": caution.figures,
                "file": trace.path,
                "traces": len({row.path for row, _ in rows}),
                "of": len(side.traces),
            },
        )


def _alike(side: Side, other: Side) -> float:
    """The share of a side's GPU time in kernels whose names the other side has, too."""
    names = {row.name for trace in other.traces for row in trace.kernels}
    rows = [row for trace in side.traces for row in trace.kernels]
    total = sum(row.sum_ns for row in rows)
    return sum(row.sum_ns for row in rows if row.name in names) / total if total else 1.0


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
    """The name without the last pair of brackets at its end."""
    if not name.endswith(")"):
        return name
    depth = 0
    for place in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[place], 0)
        if depth == 0:
            return name[:place] or name
    return name


#: The levels of matching kernels, from the exact name to what they compute without numbers.
KERNEL_LEVELS: Final[tuple[Level, ...]] = (
    lambda name: name,
    normalised,
    full_short_name,
    lambda name: _DIGITS.sub("#", full_short_name(name)),
)
#: Autograd numbers its nodes by version: `AddmmBackward` became `AddmmBackward0`.
OPERATOR_LEVELS: Final[tuple[Level, ...]] = (
    lambda name: name,
    lambda name: re.sub(r"(Backward)\d+\Z", r"\1", name).rstrip("_"),
)


def pair(a: Iterable[str], b: Iterable[str], levels: Iterable[Level]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The matching names of the two sides, each name once; names without a match are left out."""
    left_a, left_b = list(dict.fromkeys(a)), list(dict.fromkeys(b))
    pairs: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for level in levels:
        groups: defaultdict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for which, names in enumerate((left_a, left_b)):
            for name in names:
                groups[level(name)][which].append(name)
        both = [(tuple(ours), tuple(theirs)) for ours, theirs in groups.values() if ours and theirs]
        pairs += both
        paired_a = {name for ours, _ in both for name in ours}
        paired_b = {name for _, theirs in both for name in theirs}
        left_a = [name for name in left_a if name not in paired_a]
        left_b = [name for name in left_b if name not in paired_b]
    return pairs
