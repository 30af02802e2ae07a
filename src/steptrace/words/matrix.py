"""The variants of a matrix, and the syncs that they remove, in sentences."""

from collections.abc import Sequence
from typing import Final

from steptrace import format as fmt
from steptrace.documents.answer import CellSpeed, MatrixSpeed, SyncRemoval
from steptrace.documents.estimate import Band
from steptrace.words.cells import cell_words, last_name
from steptrace.words.estimate import times_words

#: Up to this ratio, a speed is said in percent. Ours.
_ABOUT_AS_FAST: Final = 1.05


def matrix_sentence(speed: MatrixSpeed) -> str:
    """In how many cells a variant is faster than its baseline, and how much at least and at most."""
    keys = fmt.enumeration([last_name(key) for key in speed.keys])
    where = f"{fmt.plural(speed.cells, 'value' if len(speed.keys) == 1 else 'combination')} of {keys}"
    subject = f"`{speed.entry}`"
    start = subject if speed.gpu is None else f"On {speed.gpu} {subject}"
    if speed.least is None or speed.most is None:
        shown = "shown" if speed.gpu is None else "estimated"
        return f"{start} is not {shown} to be faster or slower than `{speed.baseline}` at any of {where}."
    verb = "is" if speed.gpu is None else "is estimated to be"
    counts = []
    if speed.faster or not speed.slower:
        counts.append(f"faster than `{speed.baseline}` at {_count_of(speed.faster, where)}")
    if speed.slower:
        counts.append(
            f"slower at {fmt.count(speed.slower)}"
            if counts
            else f"slower than `{speed.baseline}` at {_count_of(speed.slower, where)}"
        )
    missing = f"; at {fmt.count(speed.not_compared)} more it could not be compared" if speed.not_compared else ""
    return f"{start} {verb} {' and '.join(counts)}: {_span(speed.least, speed.most)}{missing}."


def _count_of(count: int, where: str) -> str:
    return f"{fmt.count(count)} of {where}"


def _span(least: CellSpeed, most: CellSpeed) -> str:
    if least == most:
        return _speed(most)
    if most.times_as_fast[1] < 1:  # slower in all cells: the smaller difference first
        least, most = most, least
    return f"least {_speed(least)}, most {_speed(most)}"


def _speed(cell: CellSpeed) -> str:
    low, high = cell.times_as_fast
    where = cell_words(cell.cell)
    if 1 < high <= _ABOUT_AS_FAST:
        return f"at most {fmt.share_to_tenths(high - 1)} faster ({where})"
    if low > 0 and high < 1:
        return f"{times_words((1 / high, 1 / low))} times as long ({where})"
    return f"{times_words(cell.times_as_fast)} times as fast ({where})"


def removals_text(rows: Sequence[SyncRemoval]) -> str:
    """How long syncs block the host, how busy the GPU is, and what a step gains without them; empty without a row."""
    if not rows:
        return ""
    gpu = rows[0].gpu
    text = " ".join(fmt.capitalised(_removal(row)) for row in rows)
    return text if gpu is None else f"Estimated for {gpu}: {text[0].lower()}{text[1:]}"


def _removal(row: SyncRemoval) -> str:
    start = f"at {cell_words(row.cell)} syncs" if row.cell else "syncs"
    busy = "" if row.baseline_busy_pct is None else f" (GPU busy {fmt.band_percent(*row.baseline_busy_pct)})"
    blocked = f"{start} block the host for {fmt.band_ms(*row.baseline_blocked_ms)} per step{busy}"
    return f"{blocked}, and `{row.entry}` saves {length_of_saving(row.saved_ms)}."


def length_of_saving(saved_ms: Band) -> str:
    """What a step gains, as a figure: "1.2 to 1.6 ms"; "at most 30 µs" where it may be nothing."""
    low, high = saved_ms
    if high <= 0:
        return "nothing"
    return fmt.band_ms(low, high) if low > 0 else f"at most {fmt.duration_ms(high)}"


def removal_row(row: SyncRemoval) -> str:
    """The blocked time of a variant and its baseline, and what its step gains, on one line."""
    blocked = f"{fmt.band_ms(*row.baseline_blocked_ms)} → {fmt.band_ms(*row.blocked_ms)}"
    change = "shorter" if row.saved_ms[1] > 0 else "longer"
    low, high = sorted(abs(end) for end in row.saved_ms)
    if row.saved_ms[0] < 0 < row.saved_ms[1]:
        ends = f"{fmt.duration_ms(row.saved_ms[0])} to {fmt.duration_ms(row.saved_ms[1])} shorter"
        return f"host blocked {blocked}; the step is {ends}"
    return f"host blocked {blocked}; the step is {fmt.band_ms(low, high)} {change}"
