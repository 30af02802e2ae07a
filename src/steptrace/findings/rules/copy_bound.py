"""The GPU does nothing but copy or set memory for a good part of the step."""

import re
from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.base import field
from steptrace.findings.copies import CopyFigures, copies_in, copy_in_words, pageable_ns
from steptrace.findings.rule import Match, Rule, TraceFigures, Words, advise
from steptrace.findings.thresholds import DATA_HIGH, DATA_MODERATE
from steptrace.findings.window import Window
from steptrace.format import duration, share

#: The most kinds of copies that are named.
_MOST_NAMED: Final = 3
#: The words in the names of copies that the host takes part in.
_WITH_HOST: Final = re.compile(r"HtoD|DtoH|HtoH|Pinned|Pageable|Host")


class Figures(TraceFigures, frozen=True, kw_only=True):
    """Copies and sets that no kernel hides."""

    exposed_ns: Annotated[float, field("GPU time in which nothing but copies and sets ran.")]
    exposed_share: Annotated[float, field("The same as a share of the step.")]
    copies: Annotated[tuple[CopyFigures, ...], field("The kinds of copies that take most time.")]
    mostly_inside: Annotated[bool, field("Whether most of the copies' time is within the GPU.")]


def _find(window: Window) -> Iterator[Match[Figures]]:
    exposed_ns = window.parts.get("exposed_memory")
    copies = copies_in(window)
    # Pageable copies are a finding of their own.
    if exposed_ns is None or pageable_ns(copies) >= exposed_ns / 2:
        return
    if window.share(exposed_ns) < DATA_MODERATE.value:
        return
    inside_ns = sum(row.ns for row in copies if not _WITH_HOST.search(row.kind))
    yield Match(
        severity="high" if window.share(exposed_ns) >= DATA_HIGH.value else "warning",
        figures=Figures(
            steps=window.steps,
            step_ns=window.step_ns,
            exposed_ns=exposed_ns,
            exposed_share=window.share(exposed_ns),
            copies=tuple(copies[:_MOST_NAMED]),
            mostly_inside=inside_ns > sum(row.ns for row in copies) / 2,
        ),
        cost_ns_per_step=exposed_ns,
    )


def _words(figures: Figures) -> Words:
    times = f"{duration(figures.exposed_ns)} of {duration(figures.step_ns)} {figures.per}"
    return Words(
        f"for {share(figures.exposed_share)} of the time the GPU does nothing but copy or set memory",
        (f"copies and sets that no kernel hides: {times}", *(copy_in_words(row, figures) for row in figures.copies)),
        advice=_INSIDE if figures.mostly_inside else (),
    )


_INSIDE: Final = advise(
    "Most of it stays on the GPU: write results where they are needed instead of copying them there (preallocate, "
    "views instead of cat and contiguous, set_to_none instead of zeros).",
)

RULE: Final = Rule(
    name="copy_bound",
    topic="data",
    figures=Figures,
    words=_words,
    in_trace=_find,
    condition="copies and sets that no kernel hides take at least {least} of the step, and pageable ones less than "
    "half of that; severe from {high} on",
    thresholds={"least": DATA_MODERATE, "high": DATA_HIGH},
    advice=advise(
        "Copy the next batch on a separate stream while this one trains, in a smaller type, and leave values on "
        "the device.",
    ),
    counter_check="Train on one batch kept on the device: its step time is that without copies.",
    study="input_pipeline",
    gpu_work=True,
)
