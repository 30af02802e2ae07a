"""The overview of a trace: its step, where operators run, in which number formats, and what takes the time."""

from markupsafe import Markup

from steptrace import format as fmt
from steptrace.documents.summary import TraceSummary
from steptrace.report.page.definitions import definitions
from steptrace.report.page.markup import render
from steptrace.report.page.overview import (
    FORMAT_NAMES,
    MOST,
    formats_shown,
    operator_table,
    overview_parts,
    parts_chart,
)
from steptrace.report.page.table import Explained, listing
from steptrace.report.trace.model import TraceView

_TERMS = (
    "Overview.parts_ns", "Overview.device_compute_share", "Placement.ops_device", "Placement.device_ns",
    "TopOperator.host_self_ns", "Precision.kernel_ns", "Precision.tensor_core_ns",
)  # fmt: skip


def overview(view: TraceView, *, alone: bool) -> list[Explained]:
    """Where a step goes, in one chart, figures and the names that take most of it."""
    trace = view.trace
    together = f" of {len(trace.steps)} steps together" if len(trace.steps) > 1 else ""
    chart = parts_chart(overview_parts(trace.overview), "step" if trace.steps else "GPU's span")
    tables = []
    if trace.overview is not None and trace.overview.operators:
        tables.append((f"Top operators{together}", operator_table(trace.overview).html))
    if trace.kernels:
        kernels = listing(trace.kernels[:MOST], ("short_name", "count", "sum_ns", "share")).html
        tables.append((f"Top kernels{together}", kernels))
    html = render(
        "trace/overview",
        facts=_facts(view),
        chart=chart,
        title="Where a step goes" if trace.steps else "Where the time goes",
        tables=tables,
        alone=alone,
    )
    return [Explained(html, definitions(_TERMS))]


def _facts(view: TraceView) -> list[tuple[str, Markup]]:
    """Headings and figures, times and counts per step, each figure with a note that may be empty."""
    trace, facts = view.trace, []
    step_ns = None if trace.overview is None else trace.overview.step_ns
    rate = _rate_note(trace)
    if step_ns is not None and (len(trace.steps) > 1 or rate):
        facts.append(("Profiled step, mean from start to next start", fmt.duration_ns(step_ns), rate or ""))
    elif step_ns is None and view.has_gpu:
        facts.append(("GPU's span", fmt.duration_ns(trace.gpu.span_ns), "no steps marked"))
    if view.has_gpu:
        share = None if trace.overview is None else trace.overview.device_compute_share
        facts.append(("Device compute", fmt.share(share), ""))
    placed = [_noted(*fact) for fact in [*facts, *_placement(trace), *_precision(trace)]]
    return [(heading, text) for heading, text in placed]


def _noted(heading: str, text: str, note: str) -> tuple[str, Markup]:
    return heading, Markup('{} <span class="note">{}</span>').format(text, note) if note else Markup("{}").format(text)


def _rate_note(trace: TraceSummary) -> str | None:
    """Why the time per step is not the mean of the steps' lengths: steps overlap, or something lies between them."""
    if trace.overview is None or not trace.overview.steps:
        return None
    between = trace.overview.window_ns - sum(step.dur_ns for step in trace.steps)
    if between == 0:
        return None
    each = fmt.duration_ns(abs(between) / trace.overview.steps)
    return f"{each} of it between steps" if between > 0 else f"steps overlap by {each} each on average"


def _placement(trace: TraceSummary) -> list[tuple[str, str, str]]:
    placement = trace.placement
    if placement is None or not placement.ops_total:
        return []
    working = placement.ops_device + placement.ops_host
    steps = max(len(trace.steps), 1)
    computing, views = (fmt.count(round(count / steps, 2)) for count in (working, placement.ops_view))
    on_device = fmt.count(round(placement.ops_device / steps, 2))
    of = f"{on_device} of {computing} that compute or copy; {views} others only make views"
    per_step = " per step" if trace.steps else ""
    facts = [("Operators on the GPU", fmt.share(placement.device_share), of)]
    if not trace.gpu.activities:
        facts = []
    if placement.device_ns is not None:
        facts.append((f"GPU work of operators{per_step}", fmt.duration_ns(placement.device_ns / steps), ""))
    without = " without a launch" if trace.gpu.activities else " that compute or copy"
    launch_nothing = f"{fmt.count(round(placement.ops_host / steps, 2))} operators{without}"
    name = "Host time without GPU work" if trace.gpu.activities else "Host time of operators"
    return [*facts, (f"{name}{per_step}", fmt.duration_ns(placement.host_ns / steps), launch_nothing)]


def _precision(trace: TraceSummary) -> list[tuple[str, str, str]]:
    of = trace.precision
    if of is None or not of.shares:
        return []
    facts = [(f"Kernel time, {FORMAT_NAMES[name]}", fmt.share(of.shares.get(name)), "") for name in formats_shown([of])]
    if of.tf32_share:
        facts.append(("TF32, within 32-bit", fmt.share(of.tf32_share), ""))
    if of.tensor_core_share is None:
        return [*facts, ("Tensor cores", "no work for them", "")]
    unknown = of.tensor_core_unknown_share or 0
    note = "of matrix work" + (f", {fmt.share(unknown)} unknown" if unknown >= 0.005 else "")
    return [*facts, ("Tensor cores", fmt.share(of.tensor_core_share), note)]
