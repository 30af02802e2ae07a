"""How long the jobs of a call still take, from those that have ended: each rule and each variant has its own length.

A mean over all jobs is far off if one variant trains for minutes and its siblings for seconds, or if only drawings are
left.
"""

import re
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

#: The rounds of a study's trainings are rules of their own (workflow/rules/train.smk).
_ROUND: Final = re.compile(r"_run\d+$")


@dataclass
class _Rounds:
    """What is known of the rules that do the same, such as all rounds of a study's trainings.

    Attributes:
        lengths: variant -> seconds that its jobs took; jobs without a variant have the name "".
        begun: rule -> variants whose jobs have begun.
    """

    lengths: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    begun: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def typical(self, variant: str) -> float | None:
        """Seconds that a variant's job takes: the mean of its jobs so far, or of the other variants' means."""
        if variant in self.lengths:
            return statistics.fmean(self.lengths[variant])
        means = [statistics.fmean(lengths) for lengths in self.lengths.values()]
        return statistics.fmean(means) if means else None

    def pending(self, rule: str, count: int) -> list[str]:
        """The variants of a rule's jobs that have not begun, as far as other rounds show them; "" for the rest."""
        seen = [variant for variants in self.begun.values() for variant in variants]
        known = [variant for variant in dict.fromkeys(seen) if variant not in self.begun[rule]]
        return [*known, *[""] * count][:count]


class TimeLeft:
    """Follows the jobs of one call. All times are seconds of a monotonic clock.

    Args:
        counts: rule -> number of its jobs.
        now: the time at which the call starts its jobs.
    """

    def __init__(self, counts: Mapping[str, int], now: float) -> None:
        self._counts = dict(counts)
        self._started = now
        self._rounds: defaultdict[str, _Rounds] = defaultdict(_Rounds)
        self._running: dict[int, tuple[str, str, float]] = {}
        self._worked = 0.0

    def begin(self, job: int, rule: str, variant: str, now: float) -> None:
        """A job begins; `variant` is "" if it has none."""
        self._running[job] = (rule, variant, now)
        self._rounds[_ROUND.sub("", rule)].begun[rule].append(variant)

    def end(self, job: int, now: float) -> None:
        """A job that has begun ends."""
        rule, variant, began = self._running.pop(job)
        self._rounds[_ROUND.sub("", rule)].lengths[variant].append(now - began)
        self._worked += now - began

    def seconds(self, now: float) -> float | None:
        """Seconds until the last job ends, if jobs go on side by side as they did; None before the first one has ended.

        If no job of a rule has ended yet, its jobs count as long as the shortest job so far: most such jobs draw pages.
        """
        ended = [
            length for rounds in self._rounds.values() for lengths in rounds.lengths.values() for length in lengths
        ]
        if not ended:
            return None
        shortest = min(ended)
        work = 0.0
        worked = self._worked
        for rule, variant, began in self._running.values():
            worked += now - began
            length = self._rounds[_ROUND.sub("", rule)].typical(variant)
            work += max((shortest if length is None else length) - (now - began), 0.0)
        for rule, count in self._counts.items():
            rounds = self._rounds[_ROUND.sub("", rule)]
            for variant in rounds.pending(rule, count - len(rounds.begun[rule])):
                length = rounds.typical(variant)
                work += shortest if length is None else length
        at_once = max(worked / max(now - self._started, 1e-9), 1.0)
        return work / at_once
