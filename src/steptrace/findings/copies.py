"""Copies in a step, for the rules on copies."""

from collections.abc import Iterable
from typing import Annotated

from steptrace.documents.base import Document, field
from steptrace.findings.rule import TraceFigures
from steptrace.findings.window import Window
from steptrace.format import bandwidth, count, duration


class CopyFigures(Document, frozen=True, kw_only=True):
    """The copies of one kind in a mean step."""

    kind: Annotated[str, field("The kind, as the trace names it.")]
    count: Annotated[float, field("How many.")]
    ns: Annotated[float, field("Time with any of them running.")]
    bytes_per_s: Annotated[float | None, field("Mean rate; null where the trace has no sizes.")]


def copies_in(window: Window) -> list[CopyFigures]:
    """The kinds of copies on the analysed GPU in a mean step, the one with the most time first."""
    rows = [row for row in window.entry.copies if row.device == window.entry.device]
    return [
        CopyFigures(
            kind=row.kind,
            count=window.per_step(row.count),
            ns=window.per_step(row.ns),
            bytes_per_s=row.mean_bytes_per_second,
        )
        for row in sorted(rows, key=lambda row: -row.ns)
    ]


def is_pageable(row: CopyFigures) -> bool:
    """Whether these copies go through pageable memory."""
    return "Pageable" in row.kind


def pageable_ns(rows: Iterable[CopyFigures]) -> float:
    """Time of the copies that go through pageable memory."""
    return sum(row.ns for row in rows if is_pageable(row))


def copy_in_words(row: CopyFigures, figures: TraceFigures) -> str:
    """The copies of one kind in words, for the evidence of a finding with these figures."""
    rate = "" if row.bytes_per_s is None else f", {bandwidth(row.bytes_per_s)}"
    return f"{row.kind}: {count(row.count)} {figures.per}, {duration(row.ns)}{rate}"
