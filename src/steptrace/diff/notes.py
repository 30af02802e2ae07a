"""What a diff cannot show, and what to be careful about when reading it."""

from typing import Final

from steptrace.diff.side import Side

#: Below this share of kernels by time with a namesake on the other side, the programs are taken for different ones.
LEAST_ALIKE: Final = 0.25


def not_measured(a: Side, b: Side) -> dict[str, tuple[str, ...]]:
    """Topic -> the sides, `a` and `b`, whose traces could not show it; nothing for a topic that both show."""
    shown = {
        "kernels": (a.gpu, b.gpu),
        "syncs": (a.runtime, b.runtime),
        "lines": (a.gpu and a.stacks, b.gpu and b.stacks),
    }
    missing = {
        topic: tuple(side for side, known in zip("ab", both, strict=True) if not known) for topic, both in shown.items()
    }
    return {topic: found for topic, found in missing.items() if found}


def notes(a: Side, b: Side) -> list[str]:
    """Sentences on what makes the two sides hard to compare."""
    found = []
    unit = "trace" if a.whole_traces else "step"
    if a.devices and b.devices and set(a.devices) != set(b.devices):
        found.append(
            f"A ran on {' and '.join(a.devices)}, B on {' and '.join(b.devices)}: what differs is of the machine and "
            "of the program together."
        )
    if len(a.paths) != len(b.paths):
        found.append(f"A is {_traces(a)}, B {_traces(b)}: with another number of ranks a {unit} is other work.")
    if a.gpu and b.gpu and (alike := _alike(a, b)) < LEAST_ALIKE:
        found.append(
            f"Kernels of the same name make up {100 * alike:.0f} % of the GPU's time: these may be different programs."
        )
    if a.overlapping or b.overlapping:
        found.append(
            f"GPU work of a step runs on into the next step's time in {_sides(a.overlapping, b.overlapping)}. A step "
            "is counted up to where the next begins, so that no time counts twice."
        )
    if min(a.units, b.units) < 2:
        found.append(f"One {unit} on a side: there is no spread to judge a difference by.")
    return found


def _traces(side: Side) -> str:
    return "one trace" if len(side.paths) == 1 else f"{len(side.paths)} traces"


def _sides(a: bool, b: bool) -> str:  # noqa: FBT001
    return "both" if a and b else "A" if a else "B"


def _alike(a: Side, b: Side) -> float:
    """The smaller share of a side's GPU time that is of kernels, copies and sets that the other side has by name."""
    times = [side.tables["kernels"].groupby("name")["device_ns"].sum() for side in (a, b)]
    shares = [
        float(own[own.index.isin(other.index)].sum() / own.sum()) if own.sum() else 1.0
        for own, other in (times, times[::-1])
    ]
    return min(shares)
