"""The texts at the pictures of traces: how to read them, and what stands at their boxes and points."""

from pathlib import Path
from typing import Final

from steptrace import format as fmt
from steptrace.documents.overview import part_name
from steptrace.documents.roofline import OperatorRoofline
from steptrace.documents.subjects.modules import ModuleTime
from steptrace.documents.timeline import Box, RankTimeline
from steptrace.words.codes import SLOW_CAUSES

#: How to read the table of the parts of several traces' steps.
PARTS_OF_TRACES: Final = "Shares of the step of each trace: a part that differs says which rank does something else."
#: Which traces are shown where there are too many.
SAMPLE: Final = (
    "{shown} of {all} traces are shown: the first one, the straggler, those that findings name, the ones with the "
    "longest and the shortest step, the one that waits most, and others at equal distances. Findings, smallest and "
    "largest are of all of them, and summary.json has all."
)
#: Which traces have a section.
SECTIONS: Final = (
    "{shown} of {all} traces have a section, as many as the page can hold: first the straggler, or without one the "
    "rank of the finding that costs most; then the first trace; then the others that are shown. summary.json has all."
)
#: Why a page leaves a table out.
NO_ROOM: Final = "the page would be too large to send; the folder tables has all rows"
#: The key of a bar that is not divided into parts.
NOT_PROFILED: Final = "not profiled"
#: How to read the picture of all steps of several ranks.
STEPS_OF_RANKS: Final = (
    "Step time by rank and step: the darker, the longer. A dark row is a slow rank, a dark column a step that was slow "
    "on all of them."
)
#: The horizontal and the vertical axis of the picture of operators against the roofline.
ROOFLINE_AXES: Final = ("FLOP per byte", "% of roofline")
#: How to read that picture.
ROOFLINE: Final = (
    "Each point is an operator with one shape of inputs; the larger, the more GPU time. At 100 % it is as fast as the "
    "data sheet allows. Large points far down are worth a look. Above the line its inputs were still in the cache."
)
#: Why the lanes of several ranks are on no common clock.
_NO_COMMON_CLOCK: Final = (
    "Each lane begins at its own rank's step: no collective in these traces tells how far the ranks' clocks are apart."
)
#: How to read the lanes of a step with a GPU.
LANES: Final = (
    "A box as high as its lane is work or a sync. A line at the foot of the lane GPU is idle time, in the colour of "
    "its cause."
)
#: Which streams have a lane where there are too many.
BUSIEST_STREAMS: Final = "Of {all} streams the {shown} with the most work are shown."
#: Which steps have a bar where there are too many.
STEPS_DRAWN: Final = (
    "Of every {of} steps in a row the longest one has a bar. Figures are of all {all} steps, and summary.json has each."
)
#: The text of the link to download the step as a trace, or all of a trace that marks no steps.
DOWNLOAD: Final = "Download this step for Perfetto"
DOWNLOAD_OF_TRACE: Final = "Download this trace for Perfetto"
#: Letters of a name at a box.
_LONGEST_NAME: Final = 60


def lanes_of_ranks(timeline: RankTimeline) -> str:
    """Which step of several ranks the lanes show, and on which clock."""
    length = fmt.duration_ns(timeline.span_ns)
    if timeline.step is None:
        shown = (
            f"The traces of {fmt.plural(len(timeline.lanes), 'rank')} from their first events to their last, {length}"
        )
    else:
        ranks = fmt.plural(len(timeline.lanes), "rank")
        shown = f"ProfilerStep#{timeline.step} of {ranks}, the step of median length, {length}"
    clock = f"{shown}, on one clock." if timeline.is_aligned else f"{shown}. {_NO_COMMON_CLOCK}"
    on_gpu = any(lane.kind == "gpu" for lane in timeline.lanes)
    return (
        f"{clock} A line at the foot of a lane is idle time of its GPU, in the colour of its cause."
        if on_gpu
        else clock
    )


def download_note(size: int, events: int, total: int, *, of_step: bool) -> str:
    """The size of the file behind the link, and how many of the events of the step, or of a trace without steps."""
    kept = fmt.plural(events, "event")
    rest = ""
    if events != total:
        kept = f"the longest {fmt.count(events)} of {fmt.count(total)} events"
        rest = "; `steptrace analyze --excerpt FILE` writes all of them" if of_step else ""
    return f"({fmt.size_bytes(size)}, {kept}; to open in ui.perfetto.dev{rest})"


def label_of(box: Box) -> str:
    """The name of a box."""
    return part_name(box.part) if box.name is None else fmt.clipped(box.name, _LONGEST_NAME)


def box_text(box: Box) -> str:
    """A box's name, how long it ran, and the line of the program that caused it."""
    more = f" and {fmt.count(box.count - 1)} more" if box.count > 1 and box.name is not None else ""
    lasts = fmt.duration_ns(box.dur_ns) + (" together" if more else "")
    place = "" if box.file is None else f", {fmt.place(Path(box.file).name, box.line)}"
    return f"{label_of(box)}{more}: {lasts}{place}"


def operator_text(row: OperatorRoofline, steps: int) -> str:
    """An operator with its time in one of `steps` steps, its share of the roofline, and the likely cause."""
    cause = "" if row.because is None else f", {SLOW_CAUSES[row.because]}"
    time = fmt.duration_ns(row.ns / steps)
    return f"{row.name} ({fmt.clipped(row.inputs, 60)}): {time}, {fmt.percent(row.roofline_pct)} of roofline{cause}"


def module_label(row: ModuleTime) -> str:
    """A module's class and how many of them there are, or a line."""
    return f"{row.name} × {row.modules}" if (row.modules or 0) > 1 else row.name


def module_text(row: ModuleTime, steps: int) -> str:
    """A module or a line with its time in one of `steps` steps."""
    of_backward = ""
    if row.backward_ns:
        of_backward = f", {fmt.duration_ns(row.backward_ns / steps)} of it backward"
    range_of_calls = ""
    if row.largest is not None and row.largest_ns is not None and row.smallest_ns is not None:
        least, most = fmt.duration_ns(row.smallest_ns / steps), fmt.duration_ns(row.largest_ns / steps)
        range_of_calls = f", each {least} to {most}, the longest {row.largest}"
    return f"{module_label(row)}: {fmt.duration_ns(row.time_ns / steps)}{of_backward}{range_of_calls}"


def modules_note(*, on_gpu: bool, per_step: bool) -> str:
    """The note on how to read the picture of the modules."""
    time = "GPU time" if on_gpu else "Host time, forward pass,"
    parts = "modules and, in grey, lines in them" if on_gpu else "modules"
    rate = "per step" if per_step else "in the whole trace"
    return f"{time} {rate}, by {parts}. Layers of one class in one place are one box."
