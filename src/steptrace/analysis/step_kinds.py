"""The kinds of the unprofiled steps before a trace, with the syncs of the profiled ones."""

import statistics
from collections.abc import Sequence
from typing import Final

from steptrace.documents.run import Unprofiled
from steptrace.documents.step_kinds import StepKind
from steptrace.engine.kinds import Kind, kinds_of, nearest

_NAMES: Final = ("usual", "long")


def step_kinds(
    unprofiled: Unprofiled | None, profiled_ns: Sequence[int], syncs: Sequence[int] | None
) -> tuple[StepKind, ...]:
    """Usual and long steps; none where all are alike.

    Args:
        unprofiled: the times of the steps before the trace, None where none were timed.
        profiled_ns: the times of the steps in it.
        syncs: how many each of these made; None where that was not measured. A kind has the median of its steps.
    """
    kinds = () if unprofiled is None else kinds_of(unprofiled.step_ns)
    if len(kinds) < len(_NAMES):
        return ()
    counts: tuple[float | None, ...] = (None,) * len(kinds)
    if syncs is not None:
        of_kind = nearest(kinds, profiled_ns)
        by_kind = [[n for n, k in zip(syncs, of_kind, strict=True) if k == kind] for kind in range(len(kinds))]
        counts = tuple(float(statistics.median(own)) if own else None for own in by_kind)
    return tuple(
        StepKind(name, kind.steps, kind.of, round(kind.typical), kind.share, _comes(kind), count)
        for name, kind, count in zip(_NAMES, kinds, counts, strict=True)
    )


def _comes(kind: Kind) -> str:
    """How often steps of a kind come."""
    if kind.every is not None:
        return f"every {kind.every} steps"
    if 2 * kind.steps >= kind.of:
        return "mostly"
    return "once" if kind.steps == 1 else "irregularly"


def mean_ns(unprofiled: Unprofiled | None) -> int | None:
    """The mean time of the steps before the trace; None where none were timed."""
    return None if unprofiled is None or not unprofiled.step_ns else round(statistics.mean(unprofiled.step_ns))
