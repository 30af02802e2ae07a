"""Operators that compute on the host keep the GPU waiting."""

from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.base import field
from steptrace.documents.subjects.placement import LONG_NS, SUBJECT
from steptrace.findings.rule import Match, Rule, Threshold, TraceFigures, Words, advise
from steptrace.findings.thresholds import HIGH, MODERATE
from steptrace.findings.window import Window
from steptrace.format import duration, plural

_LONG: Final = Threshold(LONG_NS, "ours: shorter ones compute a few numbers", unit="ns")


class Figures(TraceFigures, frozen=True, kw_only=True):
    """Operators of a step on the host, beside those on the GPU."""

    on_gpu: Annotated[float, field("Operators that launch GPU work.")]
    gpu_host_ns: Annotated[float, field("Their time on the host.")]
    on_host: Annotated[float, field("Operators that compute on the host, those of the data loader left out.")]
    host_ns: Annotated[float, field("Their time.")]
    long_ns: Annotated[float, field("The time of those that are long enough to compute something.")]
    most: Annotated[str, field("The operator with most of the time on the host.")]
    most_ns: Annotated[float, field("Its time.")]
    waits_ns: Annotated[float, field("The most of `long_ns` for which the GPU can have waited.")]


def _find(window: Window) -> Iterator[Match[Figures]]:
    sides = {row.placed: row for row in SUBJECT.rows_of(window.entry)}
    host, gpu = sides.get("host"), sides.get("gpu")
    if host is None or not window.steps:  # without steps the making of the model would be among them
        return
    waits_ns, step_ns = window.without_profiler(window.operator_wait_ns)
    waits_share = waits_ns / step_ns if step_ns else 0.0
    if waits_share < MODERATE.value:
        return
    yield Match(
        severity="warning" if waits_share >= HIGH.value else "info",
        figures=Figures(
            steps=window.steps,
            step_ns=window.step_ns,
            device_module=window.entry.device_module,
            on_gpu=0.0 if gpu is None else window.per_step(gpu.count),
            gpu_host_ns=0.0 if gpu is None else window.per_step(gpu.host_ns),
            on_host=window.per_step(host.count),
            host_ns=window.per_step(host.host_ns),
            long_ns=window.per_step(host.long_ns),
            most=host.most,
            most_ns=window.per_step(host.most_ns),
            waits_ns=waits_ns,
        ),
        cost_ns_per_step=waits_ns,
        cost_share=waits_share,
    )


def _words(figures: Figures) -> Words:
    per = figures.per
    on_host = plural(round(figures.on_host, 1), "operator")
    on_gpu = plural(round(figures.on_gpu, 1), "operator")
    most = f"`{figures.most}` takes {duration(figures.most_ns)} of it"
    return Words(
        f"operators that compute on the host take {duration(figures.long_ns)} {per}, while the GPU waits for work",
        (
            f"on the host: {on_host}, {duration(figures.host_ns)} {per}; {most}",
            f"on the GPU: {on_gpu}, {duration(figures.gpu_host_ns)} of host time {per}",
            f"the GPU can have waited for at most {duration(figures.waits_ns)} of that",
        ),
    )


RULE: Final = Rule(
    name="operators_on_host",
    topic="waiting",
    figures=Figures,
    words=_words,
    in_trace=_find,
    condition="in the steps operators that neither launch GPU work nor copy nor wait for it, views and allocations "
    "left out, take at least {long} each and at least {least} of the step together, and the GPU is idle for as long "
    "because nothing was launched; a warning from {high} on",
    thresholds={"long": _LONG, "least": MODERATE, "high": HIGH},
    source="the TensorFlow Profiler shows operators by where they are placed, without a limit",
    advice=advise(
        "Put the operator's inputs on the GPU: create them with `device=`, or copy them once and not in every step.",
        "Move preparation of the data into the loader's workers.",
    ),
    counter_check="Move that one operator to the GPU and record again: its time has to leave the host, and idle time "
    "of the GPU with it.",
)
