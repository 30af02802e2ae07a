"""Writes numbers as text: nanoseconds as "1.23 ms", intervals with the digits they support, null as "not measured".

It also writes names and places within sentences, and makes foreign text harmless for a terminal.

No other module turns a measured number into text for a page, a finding or a terminal, so units and rounding rules are
changed here only. Functions for figures that may be unmeasured take None.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

NOT_MEASURED = "not measured"
#: Before a negative figure. A hyphen would read as a dash between two figures.
MINUS: Final = "\N{MINUS SIGN}"

#: Characters by which foreign text (a trace, a log, a file's name) could control a terminal: control characters except
#: tab and line feed, and characters that reverse the direction of text.
_COMMANDS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

#: Units of time with their length in nanoseconds, longest first.
_TIME_UNITS: tuple[tuple[str, float], ...] = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))
_BYTE_UNITS: tuple[str, ...] = ("B", "KiB", "MiB", "GiB", "TiB")

NS_PER_MS = 1e6

#: An interval whose ends are further apart than this factor says nothing; two runs that differ have such intervals.
WIDEST = 100.0
TOO_WIDE = "too noisy to compare"
#: The most digits behind the point of a ratio: nobody acts on a thousandth of a step time.
_RATIO_DECIMALS: Final = 2


def significant(value: float, digits: int = 3) -> str:
    """`value` rounded to `digits` significant digits, without an exponent and without a sign on zero."""
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinite"
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    if rounded != 0 and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        decimals -= 1  # 9.996 became 10.0: one digit fewer stands behind the point
    return f"{rounded:.{max(decimals, 0)}f}"


def rounded(value: float, digits: int = 3) -> float:
    """`value` rounded to `digits` significant digits."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def duration_ns(value: float | None, digits: int = 3) -> str:
    """A time given in nanoseconds, in the unit that keeps the figure between 1 and 1000."""
    if value is None or math.isnan(value):
        return NOT_MEASURED
    if value == 0:
        return "0 ns"
    for unit, size in _TIME_UNITS:
        # The unit is chosen after rounding, so that 999.9 µs reads "1.00 ms".
        text = significant(value / size, digits)
        if abs(float(text) if not math.isinf(value) else math.inf) >= 1 or unit == "ns":
            return f"{text} {unit}".replace("-", MINUS)
    raise AssertionError("the last unit always returns")


def duration_ms(value: float | None, digits: int = 3) -> str:
    """A time given in milliseconds, in the unit that suits it."""
    return duration_ns(None if value is None else value * NS_PER_MS, digits)


def unit_of_ms(value_ms: float) -> tuple[str, float]:
    """The unit that suits a time in milliseconds, and its length in milliseconds."""
    unit, size = next((u for u in _TIME_UNITS if abs(value_ms) * NS_PER_MS >= u[1]), _TIME_UNITS[-1])
    return unit, size / NS_PER_MS


def band_ms(low: float, high: float) -> str:
    """An estimate in milliseconds, from its low to its high end: "5.0 to 9.0 ms", or "1.0 ms" if both read the same.

    The unit stands once where both ends have the same one.
    """
    first, last = duration_ms(low, 2), duration_ms(high, 2)
    if first == last:
        return first
    unit = f" {last.rpartition(' ')[2]}"
    return f"{first.removesuffix(unit)} to {last}"


def same_band(bands: Iterable[tuple[float, float]]) -> bool:
    """Whether two estimates in milliseconds read the same."""
    return len({band_ms(*band) for band in bands}) == 1


def band_percent(low: float, high: float) -> str:
    """An estimated percentage, given as 0 to 100, from its low to its high end; one number if both read the same."""
    ends = dict.fromkeys(f"{end:.0f}" for end in (low, high))
    return f"{' to '.join(ends)} %"


def rough_duration(seconds: float, *, in_tens: bool = False) -> str:
    """How long a person waits: "12 s", "4 min", "1 h 5 min"; with `in_tens` below ten minutes "1 min 50 s"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    tens = round(seconds / 10)
    if in_tens and tens < 60:
        return f"{tens // 6} min" + (f" {tens % 6}0 s" if tens % 6 else "")
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def decimals_for_width(width: float, *, least: int = 0, most: int = 6) -> int:
    """Digits behind the point that an interval of this width deserves.

    One significant digit of the width, two where it begins with 1 or 2: the rule of the Particle Data Group, so that
    rounding moves an end by a small part of the width only.
    """
    if width <= 0 or not math.isfinite(width):
        return most if width == 0 else least
    magnitude = math.floor(math.log10(width))
    digits = 2 if width / 10.0**magnitude < 3 else 1
    return min(max(digits - 1 - magnitude, least), most)


def is_too_wide(low: float, high: float) -> bool:
    """Whether an interval of a positive figure is so wide that its ends are not worth a number."""
    return low <= 0 or high / low > WIDEST


def ratio(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """A ratio of step times, "1.18×".

    It has the digits of its interval, and two behind the point at most. Without an interval it has three digits.
    It has more digits where it would otherwise read as outside its interval.
    """
    if value is None or math.isnan(value):
        return NOT_MEASURED
    if low is None or high is None:
        return f"{significant(value, 3) if value >= 10 else _fixed(value, _RATIO_DECIMALS)}×"
    of_low, decimals, of_high = _ratio_decimals(low, high)
    bottom, top = round(low, of_low), round(high, of_high)
    while decimals < max(of_low, of_high) and not bottom <= round(value, decimals) <= top:
        decimals += 1
    return f"{_fixed(value, decimals)}×"


def ratio_interval(low: float | None, high: float | None) -> str:
    """The interval of a ratio, "1.12 to 1.25"."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return NOT_MEASURED
    if is_too_wide(low, high):
        return TOO_WIDE
    of_low, _, of_high = _ratio_decimals(low, high)
    return f"{_fixed(low, of_low)} to {_fixed(high, of_high)}"


def is_narrow(low: float, high: float) -> bool:
    """Whether both ends of the interval of a ratio read the same, so that it says no more than the ratio."""
    of_low, _, of_high = _ratio_decimals(low, high)
    return round(low, of_low) == round(high, of_high)


def _ratio_decimals(low: float, high: float) -> tuple[int, int, int]:
    """The digits behind the point of an interval's low end, of its ratio and of its high end.

    They are those that the width supports, at most two. There are more if otherwise an end that excludes 1 would read
    "1.00", or the low end "0". In a wide interval only that end has them: the ratio is not known so well.
    """
    if math.isnan(high - low):
        return _RATIO_DECIMALS, _RATIO_DECIMALS, _RATIO_DECIMALS
    of_width = decimals_for_width(high - low, most=_RATIO_DECIMALS)
    of_low = _decimals_beside(of_width, low, *([0] if low > 0 else []), *([1] if low > 1 else []))
    of_high = _decimals_beside(of_width, high, *([1] if high < 1 else []))
    if of_width < _RATIO_DECIMALS:
        return of_low, of_width, of_high
    most = max(of_low, of_high)
    return most, most, most


def _decimals_beside(decimals: int, end: float, *excluded: int) -> int:
    """The digits, from `decimals` on, with which an end of an interval does not read as a number that it excludes."""
    while decimals < 2 * _RATIO_DECIMALS and round(end, decimals) in excluded:
        decimals += 1
    return decimals


def step_time(value: float | None, low: float | None, high: float | None) -> tuple[str, str | None]:
    """A step time in milliseconds and its interval, in one unit: ("12.34 ms", "12.30 to 12.41 ms").

    The second is None where there is no interval (one run).
    """
    if value is None or math.isnan(value):
        return NOT_MEASURED, None
    if low is None or high is None or math.isnan(high - low):
        return duration_ms(value, 4), None
    if is_too_wide(low, high):
        return duration_ms(value), TOO_WIDE
    unit, size = unit_of_ms(value)
    values = [ms / size for ms in (value, low, high)]
    of_width = decimals_for_width(values[2] - values[1], most=_decimals_for(values[0], 5))
    # A wide interval deserves few digits, yet a bound of "0 ms" would say what was not measured.
    parts = [_fixed(v, max(of_width, _decimals_for(v, 3))) for v in values]
    return f"{parts[0]} {unit}", f"{parts[1]} to {parts[2]} {unit}"


def _decimals_for(value: float, digits: int) -> int:
    """How many digits behind the point give a value `digits` significant ones."""
    magnitude = 0 if value == 0 else math.floor(math.log10(abs(value)))
    return max(digits - 1 - magnitude, 0)


def _fixed(value: float, decimals: int) -> str:
    if math.isinf(value):
        return "infinite"
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def percent(value: float | None) -> str:
    """A percentage given as 0 to 100, without decimals from 10 on, and with one where it would read 100 and is less."""
    if value is None or math.isnan(value):
        return NOT_MEASURED
    if value == 0:
        return "0 %"
    if 0 < value < 0.05:  # not to be taken for none
        return "under 0.1 %"
    if 99.95 <= value < 100:  # not to be taken for all
        return "over 99.9 %"
    decimals = 0 if 9.95 <= abs(value) < 99.5 or abs(value) >= 100 else 1
    return f"{_fixed(value, decimals)} %".replace("-", MINUS)


def share(value: float | None) -> str:
    """A share given as 0 to 1, as a percentage."""
    return percent(None if value is None else value * 100)


def share_to_tenths(value: float) -> str:
    """A share given as 0 to 1, as a percentage with one decimal, for parts that a reader adds up."""
    return f"{_fixed(value * 100, 1)} %"


def setting(value: float | None) -> str:
    """A chosen share (a confidence, a noise floor) as a percentage without needless digits."""
    if value is None or math.isnan(value):
        return NOT_MEASURED
    return f"{value * 100:.4g} %"


def count(value: float | None) -> str:
    """A count, or a count per step, with separated thousands.

    A whole number has no decimals, another number below 100 at most two, below 1000 one, and above none.
    """
    if value is None or math.isnan(value):
        return NOT_MEASURED
    if math.isinf(value):
        return "infinite"
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{round(value):,}"
    if abs(value) < 0.01:
        return significant(value, 1)
    return (f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}").rstrip("0").rstrip(".")


def with_unit(value: float | None, unit: str | None) -> str:
    """A figure by the unit that its declaration names: "%", "share", "ns", "ms", "B", "B/s", or none for a count."""
    of_unit = {
        "%": percent,
        "share": share,
        "ns": duration_ns,
        "ms": duration_ms,
        "B": size_bytes,
        "B/s": bandwidth,
        None: count,
    }
    return of_unit[unit](value)


def signed_ns(value: float) -> str:
    """A difference of times with its sign, "+1.20 ms", "−310 µs", "0"."""
    if value > 0:
        sign = "+"
    elif value < 0:
        sign = MINUS
    else:
        sign = ""
    return sign + (duration_ns(abs(value)) if value else "0")


def size_bytes(value: float | None) -> str:
    """A number of bytes in the binary unit that suits it."""
    if value is None or math.isnan(value):
        return NOT_MEASURED
    for unit in _BYTE_UNITS:
        if abs(value) < 1024 or unit == _BYTE_UNITS[-1]:
            return f"{round(value)} B" if unit == "B" else f"{significant(value)} {unit}"
        value /= 1024
    raise AssertionError("the last unit always returns")


def bandwidth(value: float | None) -> str:
    """Bytes per second in decimal units, "24.8 GB/s"."""
    if value is None or math.isnan(value):
        return NOT_MEASURED
    for unit, size in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if abs(value) >= size:
            return f"{significant(value / size)} {unit}"
    return f"{significant(value)} B/s"


def relative_error(value: float | None) -> str:
    """A relative error: "1.2e-07", "0" if exact, "infinite" if the reference is 0 or the value not finite."""
    if value is None or math.isnan(value):
        return NOT_MEASURED
    if math.isinf(value):
        return "infinite"
    return "0" if value == 0 else f"{value:.1e}"


def plain(value: float) -> str:
    """A chosen number, or a mark on an axis, as it is: "0.5", "20", "1e+06"."""
    return f"{value:g}"


def tick(value: float) -> str:
    """A mark on an axis of counts, with separated thousands."""
    return f"{value:,g}"


def six_digits(value: float) -> str:
    """A figure of any unit in a message, in six digits."""
    return f"{value:.6g}"


def error_bound(value: float) -> str:
    """An error, or its tolerance, in a sentence: "0.25", "1e-05"."""
    return f"{value:.2g}"


def factor(value: float, *, decimals: int = 2) -> str:
    """A factor in a sentence: "1.12" times as long."""
    return f"{value:.{decimals}f}"


def plural(number: float, noun: str) -> str:
    """A number with its noun: "1 run", "1,429 kernels", "0.5 syncs"."""
    text = count(number)
    return f"{text} {noun if text == '1' else noun + 's'}"


def duration(ns: float) -> str:
    """A time in a sentence: as `duration_ns`, without needless zeros."""
    figure, unit = duration_ns(ns).split(" ")
    return f"{figure.rstrip('0').rstrip('.') if '.' in figure else figure} {unit}"


def place(file: str, line: int | None, function: str | None = None) -> str:
    """A place in a program: "train.py:7"; without a line "train.py", or "train.py, module level" outside functions."""
    if line is not None:
        return f"{file}:{line}"
    return f"{file}, module level" if function == "<module>" else file


def lines_of(places: Iterable[tuple[str, int]]) -> list[str]:
    """Lines by file, as code: "`a.py:3`, `:7`"; each once, in their order."""
    lines: dict[str, dict[int, None]] = {}
    for file, line in places:
        lines.setdefault(file, {})[line] = None
    return [f"`{file}:{first}`" + "".join(f", `:{line}`" for line in more) for file, (first, *more) in lines.items()]


def capitalised(text: str) -> str:
    """The text with a capital letter at its start; a name that must stay as it is stands in backticks there."""
    return text[:1].upper() + text[1:]


def fraction(value: float) -> str:
    """A fraction of 1 as a style sheet takes it: "0.125"."""
    return f"{value:.3f}"


def without_backticks(text: str) -> str:
    """The text for a terminal: without the backticks around names, which a page shows as code."""
    return text.replace("`", "")


def printable(text: str) -> str:
    """The text with every character that commands a terminal written as its escape, such as `\\x1b`."""
    return _COMMANDS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def clipped(text: str, length: int) -> str:
    """`text` in at most `length` characters, without a part of its middle, since names differ at their ends."""
    end = (length - 1) // 2
    return text if len(text) <= length else f"{text[: length - 1 - end]}…{text[-end:]}"


#: A variant's name in a study's file, and what the matrix adds to it, behind "__", for one of its keys.
_ENTRY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")
_OF_CELL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*-[A-Za-z0-9_.+-]+")


def variant(name: str) -> str:
    """A variant's name for a reader: `loop__batch_size-32__precision-bf16` of a matrix is "loop (batch_size=32, ...)".

    A key of a matrix holds no hyphen, so the first one ends it.
    """
    entry, *cell = name.split("__")
    if not cell or not _ENTRY.fullmatch(entry) or not all(map(_OF_CELL.fullmatch, cell)):
        return name
    return f"{entry} ({', '.join(part.replace('-', '=', 1) for part in cell)})"


def names(listed: Sequence[str], most: int = 5) -> str:
    """Names of variants for a sentence: "`a`, `b` and 3 more"."""
    more = [f"{len(listed) - most} more"] if len(listed) > most else []
    return enumeration([*(f"`{variant(name)}`" for name in listed[:most]), *more])


def enumeration(names: list[str]) -> str:
    """Names for a sentence: "a", "a and b", "a, b and c"."""
    if len(names) == 1:
        return names[0]
    if names:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return ""


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, indented by two; each column but the last is as wide as its longest cell."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head) - 1)]
    return [
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in (head, *rows)
    ]
