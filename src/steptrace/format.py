"""Numbers as words: nanoseconds to "1.23 ms", intervals with the digits they deserve, "not measured" for null.

Names and places in a sentence, too, and text of others made harmless for a terminal.

Nothing else in steptrace turns a measured number into text for a page, a finding or a terminal, so a unit or a rounding
rule is changed here and nowhere else. What can be unmeasured takes None.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

NOT_MEASURED = "not measured"

#: Characters by which text from others (a trace, a log, a file's name) could command a terminal: control characters but
#: tab and line feed, and those that reverse text's direction.
_COMMANDS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

#: Units of time with their length in nanoseconds, longest first.
_TIME_UNITS: tuple[tuple[str, float], ...] = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))
_BYTE_UNITS: tuple[str, ...] = ("B", "KiB", "MiB", "GiB", "TiB")

NS_PER_MS = 1e6

#: An interval whose ends are further apart than this says nothing: two runs that differ have such ones.
WIDEST = 100.0
TOO_WIDE = "too noisy to compare"


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
            return f"{text} {unit}"
    raise AssertionError("the last unit always returns")


def duration_ms(value: float | None, digits: int = 3) -> str:
    """A time given in milliseconds, in the unit that suits it."""
    return duration_ns(None if value is None else value * NS_PER_MS, digits)


def unit_of_ms(value_ms: float) -> tuple[str, float]:
    """The unit that suits a time in milliseconds, and its length in milliseconds."""
    unit, size = next((u for u in _TIME_UNITS if abs(value_ms) * NS_PER_MS >= u[1]), _TIME_UNITS[-1])
    return unit, size / NS_PER_MS


def band_ms(low: float, high: float) -> str:
    """An estimate in milliseconds, from its low to its high end."""
    return f"{duration_ms(low, 2)} to {duration_ms(high, 2)}"


def band_percent(low: float, high: float) -> str:
    """An estimate as a percentage given as 0 to 100, from its low to its high end, which may look alike."""
    ends = dict.fromkeys(f"{end:.0f}" for end in (low, high))
    return f"{' to '.join(ends)} %"


def rough_duration(seconds: float) -> str:
    """How long a person waits: "12 s", "4 min", "1 h 5 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
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
    """A ratio of step times, "1.18×"; the digits follow the width of its interval where there is one."""
    if value is None or math.isnan(value):
        return NOT_MEASURED
    return f"{_fixed(value, _ratio_decimals(low, high))}×"


def ratio_interval(low: float | None, high: float | None) -> str:
    """The interval of a ratio, "1.12 to 1.25"."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return NOT_MEASURED
    if is_too_wide(low, high):
        return TOO_WIDE
    decimals = _ratio_decimals(low, high)
    return f"{_fixed(low, decimals)} to {_fixed(high, decimals)}"


def _ratio_decimals(low: float | None, high: float | None) -> int:
    if low is None or high is None or math.isnan(high - low):
        return 2
    return decimals_for_width(high - low, least=2, most=4)


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
    """Digits behind the point that give a value so many significant ones: at most five, no clock here deserves more."""
    magnitude = 0 if value == 0 else math.floor(math.log10(abs(value)))
    return max(digits - 1 - magnitude, 0)


def _fixed(value: float, decimals: int) -> str:
    if math.isinf(value):
        return "infinite"
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def percent(value: float | None) -> str:
    """A percentage given as 0 to 100, without decimals from 10 on."""
    if value is None or math.isnan(value):
        return NOT_MEASURED
    if value == 0:
        return "0 %"
    if 0 < value < 0.05:  # not to be taken for none
        return "under 0.1 %"
    return f"{_fixed(value, 0 if abs(value) >= 9.95 else 1)} %"


def share(value: float | None) -> str:
    """A share given as 0 to 1, as a percentage."""
    return percent(None if value is None else value * 100)


def setting(value: float | None) -> str:
    """A share that somebody chose (a confidence, a floor), as a percentage without needless digits."""
    if value is None or math.isnan(value):
        return NOT_MEASURED
    return f"{value * 100:.4g} %"


def count(value: float | None) -> str:
    """A count or a count per step: whole where it is whole, else at most two decimals; thousands are set apart.

    From 100 on one decimal is enough, from 1000 on none.
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
    sign = "+" if value > 0 else "\N{MINUS SIGN}" if value < 0 else ""
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
    """Bytes per second as decimal units say them, "24.8 GB/s"."""
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


def printable(text: str) -> str:
    """The text with every character that commands a terminal written as its escape, such as `\\x1b`."""
    return _COMMANDS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def clipped(text: str, length: int) -> str:
    """`text` in at most `length` characters; what is cut is its middle, since ends tell names apart."""
    end = (length - 1) // 2
    return text if len(text) <= length else f"{text[: length - 1 - end]}…{text[-end:]}"


def names(of: Sequence[str], most: int = 5) -> str:
    """Names of variants as a sentence holds them: "`a`, `b` and 3 more"."""
    more = [f"{len(of) - most} more"] if len(of) > most else []
    return enumeration([*(f"`{name}`" for name in of[:most]), *more])


def enumeration(names: list[str]) -> str:
    """Names as a sentence holds them: "a", "a and b", "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""
