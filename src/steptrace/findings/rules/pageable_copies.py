"""Copies go through pageable memory, which the driver stages on the host."""

from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.base import field
from steptrace.findings.copies import CopyFigures, copies_in, copy_in_words, is_pageable, pageable_ns
from steptrace.findings.rule import Match, Rule, Threshold, TraceFigures, Words, advise
from steptrace.findings.thresholds import SEVERE
from steptrace.findings.window import Window
from steptrace.format import duration
from steptrace.limits import NOISE_FLOOR

#: The most kinds of copies that are named.
_MOST_NAMED: Final = 3
_LEAST: Final = Threshold(
    NOISE_FLOOR, "ours, the default noise floor; Nsight Systems (cuda_memcpy_async) names each pageable copy"
)


class Figures(TraceFigures, frozen=True, kw_only=True):
    """Copies out of or into pageable memory."""

    copies_ns: Annotated[float, field("Time of these copies.")]
    copies: Annotated[tuple[CopyFigures, ...], field("The kinds that take most of it.")]


def _find(window: Window) -> Iterator[Match[Figures]]:
    rows = [row for row in copies_in(window) if is_pageable(row)]
    if not rows:
        return
    ns = pageable_ns(rows)
    exposed_ns = window.parts.get("exposed_memory")
    yield Match(
        severity="warning" if window.share(ns) >= SEVERE.value else "info",
        figures=Figures(steps=window.steps, step_ns=window.step_ns, copies_ns=ns, copies=tuple(rows[:_MOST_NAMED])),
        cost_ns_per_step=ns if exposed_ns is None else min(ns, exposed_ns),
    )


def _words(figures: Figures) -> Words:
    time = f"{duration(figures.copies_ns)} {figures.per}"
    return Words(
        f"copies go through pageable memory, which the driver stages on the host: {time}",
        tuple(copy_in_words(row, figures) for row in figures.copies),
    )


RULE: Final = Rule(
    name="pageable_copies",
    topic="data",
    figures=Figures,
    words=_words,
    in_trace=_find,
    condition="copies out of or into pageable memory take at least {least} of the step; a warning from {high} on",
    thresholds={"least": _LEAST, "high": SEVERE},
    advice=advise("Pin the host's side: `DataLoader(pin_memory=True)`, and `.to(device, non_blocking=True)`."),
    counter_check="Pinning adds a copy on the host and takes memory that cannot be swapped: with small batches check "
    "that the loader's wait does not grow by more than the copy saves.",
    study="input_pipeline",
    gpu_work=True,
)
