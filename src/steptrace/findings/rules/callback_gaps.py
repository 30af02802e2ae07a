"""The GPU is idle while callbacks around a step run."""

from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.base import Document, field
from steptrace.documents.finding import Source
from steptrace.documents.subjects.callbacks import SUBJECT
from steptrace.findings.rule import Match, Rule, TraceFigures, Words, advise
from steptrace.findings.thresholds import HIGH, MODERATE
from steptrace.findings.window import Window
from steptrace.format import duration, place, plural, share

#: The most callbacks that are named.
_MOST_NAMED: Final = 3


class Called(Document, frozen=True, kw_only=True):
    """A callback in a mean step."""

    file: Annotated[str | None, field("File of its function; null of a label.")]
    line: Annotated[int | None, field("Line of its def.")]
    function: Annotated[str, field("Its name, or the label.")]
    calls: Annotated[float, field("How many calls.")]
    host_ns: Annotated[float, field("Its time on the host.")]
    idle_ns: Annotated[float, field("Idle time of the GPU meanwhile.")]


class Figures(TraceFigures, frozen=True, kw_only=True):
    """Idle time of the GPU while callbacks run."""

    idle_ns: Annotated[float, field("All of it, as profiled.")]
    most_ns: Annotated[float, field("The most that an unprofiled step can have of it; all of it if none is known.")]
    most_share: Annotated[float, field("The same as a share of that step.")]
    callbacks: Annotated[tuple[Called, ...], field("The callbacks, most idle time first.")]


def _find(window: Window) -> Iterator[Match[Figures]]:
    rows = sorted(SUBJECT.rows_of(window.entry), key=lambda row: -(row.idle_ns or 0))
    idle_ns = window.callback_idle_ns
    most_ns, step_ns = window.without_profiler(idle_ns)
    most_share = most_ns / step_ns if step_ns else 0.0
    if not rows or most_share < MODERATE.value:
        return
    first = rows[0]
    yield Match(
        severity="warning" if most_share >= HIGH.value and not window.host_may_be_slowed else "info",
        figures=Figures(
            steps=window.steps,
            step_ns=window.step_ns,
            device_module=window.entry.device_module,
            idle_ns=idle_ns,
            most_ns=most_ns,
            most_share=most_share,
            callbacks=tuple(
                Called(
                    file=row.file,
                    line=row.line,
                    function=row.function,
                    calls=window.per_step(row.count),
                    host_ns=window.per_step(row.host_ns),
                    idle_ns=window.per_step(row.idle_ns or 0),
                )
                for row in rows[:_MOST_NAMED]
                if row.idle_ns
            ),
        ),
        cost_ns_per_step=most_ns,
        cost_share=most_share,
        source=None if first.file is None else Source(file=first.file, line=first.line),
    )


def _words(figures: Figures) -> Words:
    per = figures.per
    evidence = []
    for row in figures.callbacks:
        where = "" if row.file is None else f" ({place(row.file, row.line)})"
        calls = plural(round(row.calls, 1), "call")
        evidence.append(
            f"`{row.function}`{where}: {calls}, {duration(row.host_ns)} {per}, with the GPU idle for "
            f"{duration(row.idle_ns)}"
        )
    return Words(
        f"callbacks around a step leave the GPU idle for {share(figures.most_share)} of it",
        tuple(evidence),
    )


RULE: Final = Rule(
    name="callback_gaps",
    topic="waiting",
    figures=Figures,
    words=_words,
    in_trace=_find,
    condition="the GPU is idle for at least {least} of the step while a callback runs that is called before or after a "
    "batch or a step (`on_train_batch_end`, `on_step_end`, `after_batch`); a warning from {high} on",
    thresholds={"least": MODERATE, "high": HIGH},
    source="the shares are those of launch overhead",
    advice=advise(
        "Let the callback run every hundredth step, and read no tensor in it: keep losses and metrics on the GPU "
        "until they are logged.",
    ),
    counter_check="Leave the callback out and measure again: the step has to become shorter by that time.",
)
