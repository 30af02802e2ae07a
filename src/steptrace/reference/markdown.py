"""Tables and cells as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from steptrace.report import format as fmt

Figures = Mapping[str, Any]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a sentence that says so if there is nothing to put into it."""
    if not rows:
        return "Not measured.\n"
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def times(value: float | None) -> str:
    """A ratio that has no interval, to three digits."""
    return fmt.NOT_MEASURED if value is None else f"{fmt.significant(value)}×"


def step(variant: Figures) -> str:
    """Median step time with its 95 % interval."""
    time = variant.get("step_ms") or {}
    if time.get("low") is None or time.get("high") is None:
        return fmt.duration_ms(time.get("median"))
    return f"{fmt.duration_ms(time['median'])} ({fmt.duration_ms(time['low'])} to {fmt.duration_ms(time['high'])})"


def gain(variant: Figures) -> str:
    """Ratio to the baseline with its 95 % interval and verdict."""
    ratio = variant.get("ratio") or {}
    if ratio.get("verdict") == "baseline":
        return "baseline"
    interval = ratio.get("low"), ratio.get("high")
    if None in interval:
        return f"{times(ratio.get('value'))}, no interval"
    return f"{fmt.ratio(ratio['value'], *interval)} ({fmt.ratio_interval(*interval)}), {ratio['verdict']}"


def syncs(variant: Figures) -> list[str]:
    """Predicted, warned of and traced, per step."""
    counts = variant.get("syncs") or {}
    return [fmt.count(counts.get(f"{name}_per_step")) for name in ("predicted", "warned", "measured")]
