"""The reason why a step takes as long as it does: its largest part, and the largest piece of that part."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from steptrace.documents.reason import Reason, ReasonKind
from steptrace.documents.summary import TraceSummary
from steptrace.findings.window import Window, window_of

#: The parts of a GPU's step by the reason that they stand for. Idle time after syncs is divided, see `_of_gpu`.
_REASONS: Final[Mapping[ReasonKind, str]] = {
    "kernels": "compute",
    "communication": "exposed_comm",
    "copies": "exposed_memory",
    "data": "idle_loader",
    "host": "idle_host",
    "gaps": "idle_between_kernels",
    "dependency": "idle_dependency",
}
#: The class of the kernels that a reason is about.
_CLASSES: Final[Mapping[ReasonKind, str]] = {"kernels": "compute", "copies": "memory"}
#: The host's time that is in no part of the step.
_OTHER: Final = "other"


def reason_of(trace: TraceSummary) -> Reason | None:
    """The largest part of a trace's step; None where nothing divides it, or the trace cannot tell which it is."""
    divided = trace.overview
    if divided is None or not divided.window_ns:
        return None
    window = window_of(trace)
    return _of_gpu(window) if divided.kind == "gpu" else _of_host(window, divided.of_step)


def _of_host(window: Window, parts: Mapping[str, float]) -> Reason | None:
    labelled = {name: ns for name, ns in parts.items() if name != _OTHER and ns}
    if not labelled:
        return None
    largest = max(labelled, key=lambda name: labelled[name])
    share = labelled[largest] / sum(parts.values())
    return Reason("host_part", share, bool(window.steps), name=largest, step_ns=window.step_ns)


def _of_gpu(window: Window) -> Reason | None:
    parts = window.parts
    trace = window.entry
    times: dict[ReasonKind, float] = {kind: parts.get(name, 0.0) for kind, name in _REASONS.items()}
    # Idle time after syncs counts for them up to what they can cost; the rest is the host's time to launch.
    after_syncs = parts.get("idle_sync", 0.0)
    ceiling_ns = trace.syncs.ceiling_ns
    of_syncs = after_syncs if ceiling_ns is None else min(after_syncs, window.per_step(ceiling_ns))
    times |= {"syncs": of_syncs, "host": times["host"] + after_syncs - of_syncs}
    kind = max(times, key=lambda name: times[name])
    # Most of the step may be idle time whose cause the trace cannot tell.
    untold_ns = parts.get("idle_unknown", 0.0) if _is_untold(trace) else 0.0
    if times[kind] <= untold_ns:
        return None
    busy_ns = window.step_ns - (window.idle_ns or 0.0)
    reason = Reason(
        kind, window.share(times[kind]), bool(window.steps), step_ns=window.step_ns, busy_ns=busy_ns,
        kernels=trace.kernels_per_step,
    )  # fmt: skip
    if kind == "host":
        reason = replace(
            reason,
            # All of the idle time, as the bar of the parts shows it: the cost of the syncs is in it.
            share=window.share(times["host"] + of_syncs),
            meanwhile=next((activity for activity, ns in window.host_while_idle if ns), None),
            after_syncs=window.share(after_syncs),
            syncs_cost=window.share(of_syncs),
        )
    if kind in _CLASSES:
        reason = _with_kernel(reason, window)
    if kind == "kernels":
        reason = _with_line(reason, trace)
    if kind == "communication":
        reason = _with_collective(reason, window)
    if kind == "syncs":
        reason = _with_site(reason, trace)
    return reason


def _is_untold(trace: TraceSummary) -> bool:
    """Whether the trace lacks what tells some causes of idle time."""
    return trace.overview is not None and None in trace.overview.parts_ns.values()


def _with_kernel(reason: Reason, window: Window) -> Reason:
    of_class = [row for row in window.entry.kernels if row.class_ == _CLASSES[reason.kind]]
    if not of_class:
        return reason
    most = max(of_class, key=lambda row: row.sum_ns)
    share = window.share(window.per_step(most.sum_ns))
    if share <= reason.share:
        return replace(reason, name=most.short_name, name_share=share)
    # It runs on several streams at once, so its summed time is longer than the step's part.
    summed = sum(row.sum_ns for row in of_class)
    return replace(reason, name=most.short_name, name_share=most.sum_ns / summed, overlaps=True)


def _with_line(reason: Reason, trace: TraceSummary) -> Reason:
    lines = trace.program.by_line
    return replace(reason, file=lines[0].file, line=lines[0].line) if lines else reason


def _with_collective(reason: Reason, window: Window) -> Reason:
    trace = window.entry
    names = () if trace.collectives is None else trace.collectives.by_name
    waits = None if trace.overview is None else trace.overview.exposed_wait_ns
    exposed_ns = reason.share * window.step_ns
    if waits is not None and exposed_ns:
        reason = replace(reason, wait_share=min(window.per_step(waits) / exposed_ns, 1.0))
    most = max((row for row in names if row.exposed_ns), key=lambda row: row.exposed_ns or 0, default=None)
    if most is None:
        return reason
    return replace(reason, name=most.collective, name_share=window.share(window.per_step(most.exposed_ns or 0)))


def _with_site(reason: Reason, trace: TraceSummary) -> Reason:
    most = max(trace.syncs.sites, key=lambda site: site.ceiling_ns or 0, default=None)
    return reason if most is None else replace(reason, name=most.op or most.kind, file=most.file, line=most.line)
