"""The places in a program at which something was counted, and how often, in all and by step."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from steptrace.engine.frames import SourceLine, trace_file_name


@dataclass(frozen=True, kw_only=True)
class CountedPlace:
    """One place in a program, an operation there, and how often it was called in everything that was predicted.

    `file` and `line` are the innermost frame that belongs neither to PyTorch nor to the pipeline. For an operation of
    the backward pass (`phase`) they are those of the forward pass. They are None if the stack has no such frame.
    `label` is the innermost `record_function` label at that moment.

    If the line belongs to a library, `program_file` and `program_line` are the innermost line outside of libraries.

    `phase` is one of `data` (copies of a batch to the device before the forward pass), `forward`, `backward`,
    `optimizer` and `other` (after the backward pass or the optimizer, until the next step's forward pass begins).
    """

    op: str
    file: str | None
    line: int | None
    function: str | None
    code: str | None
    label: str | None
    phase: str
    reason: str
    program_file: str | None = None
    program_line: int | None = None
    #: How often in each step, where steps were told apart (`Syncs.step_ends`).
    by_step: tuple[int, ...] = ()
    count: int

    def __str__(self) -> str:
        """Its count, operator, line and code in one line."""
        return self._in_one_line(self.op)

    def _in_one_line(self, what: str) -> str:
        place = "no line of the program" if self.file is None else f"{self.file}:{self.line}"
        return "  ".join([f"{self.count} x {what}", place, *filter(None, [self.code])])


class Unknown(CountedPlace):
    """An operation whose syncs could not be judged."""


class Assumed(CountedPlace):
    """A value that the program read, or a size that it needed, and that was not computed."""


class EarlyRead(CountedPlace):
    """A value that the program reads while the copy of it from the device may be under way: it may be the old one."""


@dataclass(frozen=True, kw_only=True)
class Site(CountedPlace):
    """A place that makes the host wait, `count` times, for a copy, a stream, an event or the device (`kind`).

    `pinned`: of a copy to the device, whether the host's memory is pinned; else None.
    """

    kind: str
    pinned: bool | None = None

    def __str__(self) -> str:
        """Its count, what waits, operator, line and code in one line."""
        return self._in_one_line(f"{self.kind} by {self.op}")


_Counted = TypeVar("_Counted", bound=CountedPlace)


class PlaceCounts:
    """How often something happened at each place. Its user holds a lock while it changes or is read.

    Attributes:
        sites: the syncs.
        unknown: the operations that could not be judged.
        assumed: the reads of values that were not computed.
        early_reads: the reads of values whose copy may be under way.
        notes: remarks of no line, which `clear` keeps.
    """

    def __init__(self) -> None:
        self.sites: Counter[Site] = Counter()
        self.unknown: Counter[Unknown] = Counter()
        self.assumed: Counter[Assumed] = Counter()
        self.early_reads: Counter[EarlyRead] = Counter()
        self.notes: dict[Unknown, None] = {}
        #: The counts of all places at the end of each step.
        self._steps: list[Counter[CountedPlace]] = []

    def note(self, op: str, reason: str) -> None:
        """Add a remark of no line."""
        no_line: dict[str, Any] = dict.fromkeys((*SourceLine._fields, "code", "label"))
        self.notes[Unknown(**no_line, op=op, phase="other", count=0, reason=reason)] = None

    def step_ends(self) -> None:
        """Note that a step has ended."""
        counts: Counter[CountedPlace] = Counter()
        for places in (self.sites, self.unknown, self.assumed, self.early_reads):
            counts.update(places)
        self._steps.append(counts)

    def syncs_by_step(self) -> tuple[int, ...]:
        """The number of syncs in each step that has ended."""
        at_ends = [0, *(sum(counts[site] for site in self.sites) for counts in self._steps)]
        return tuple(later - earlier for earlier, later in pairwise(at_ends))

    def syncs_of_data(self) -> int:
        """The number of syncs before the forward pass: of a batch's copies, and of a first step's set-up."""
        return sum(count for site, count in self.sites.items() if site.phase == "data")

    def merged(self, places: Mapping[_Counted, int]) -> list[_Counted]:
        """Places with their counts, in all and by step; those that differ only in the part of the step are one."""
        alike: dict[_Counted, list[_Counted]] = {}
        for place in places:
            alike.setdefault(_without_part(place), []).append(place)
        merged = []
        for group in alike.values():
            at_ends = [0, *(sum(counts[place] for place in group) for counts in self._steps)]
            by_step = tuple(later - earlier for earlier, later in pairwise(at_ends))
            count = sum(places[place] for place in group)
            merged.append(replace(max(group, key=places.__getitem__), count=count, by_step=by_step))
        return merged

    def clear(self) -> None:
        """Forget all counts and steps."""
        self.sites.clear()
        self.unknown.clear()
        self.assumed.clear()
        self.early_reads.clear()
        self._steps.clear()


def _without_part(place: _Counted) -> _Counted:
    """A place without the part of the step. The part stays for a backward pass, and where there is no line."""
    return place if place.phase == "backward" or place.file is None else replace(place, phase="")


def named_as_in_trace(place: _Counted) -> _Counted:
    """A place with its files named as a trace of the program names them."""
    program = place.program_file
    return replace(
        place,
        file=place.file and trace_file_name(place.file),
        program_file=program and trace_file_name(program),
    )
