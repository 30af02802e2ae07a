"""The overview of a trace: its step, where operators run, in which number formats, and what takes the time."""

from markupsafe import Markup

from steptrace import format as fmt
from steptrace.documents.summary import TraceSummary
from steptrace.report.page.definitions import definitions
from steptrace.report.page.markup import render
from steptrace.report.page.overview import (
    FORMAT_NAMES,
    formats_shown,
    operator_table,
    overview_parts,
    parts_chart,
)
from steptrace.report.page.table import Explained
from steptrace.report.trace.model import TraceView
from steptrace.report.trace.parts import note

_TERMS = ("Overview.parts_ns", "TopOperator.host_self_ns", "Precision.kernel_ns", "Precision.tensor_core_ns")


def overview(view: TraceView, *, alone: bool) -> list[Explained]:
    """Where a step goes, in one chart, figures and the names that take most of it."""
    trace = view.trace
    together = f" of {len(trace.steps)} steps together" if len(trace.steps) > 1 else ""
    # The page of one trace begins with this chart.
    chart = None if alone else parts_chart(overview_parts(trace.overview), "step" if trace.steps else "GPU's span")
    tables = []
    if trace.overview is not None and trace.overview.operators:
        tables.append((f"Top operators{together}", operator_table(trace.overview).html))
    html = render(
        "trace/overview",
        facts=_facts(view),
        chart=chart,
        title="Where a step goes" if trace.steps else "Where the time goes",
        tables=tables,
        alone=alone,
    )
    return [Explained(html, definitions(_TERMS)), *_placement(trace)]


def _facts(view: TraceView) -> list[tuple[str, Markup]]:
    """Headings and figures, times and counts per step, each figure with a note that may be empty."""
    trace, facts = view.trace, []
    step_ns = None if trace.overview is None else trace.overview.step_ns
    rate = _rate_note(trace)
    if step_ns is not None and (len(trace.steps) > 1 or rate):
        facts.append(("Profiled step, mean from start to next start", fmt.duration_ns(step_ns), rate or ""))
    elif step_ns is None and view.has_gpu:
        facts.append(("GPU's span", fmt.duration_ns(trace.gpu.span_ns), "no steps marked"))
    placed = [_noted(*fact) for fact in [*facts, *_precision(trace)]]
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


def _placement(trace: TraceSummary) -> list[Explained]:
    """How many operators launched work on the GPU, computed on the host, or made a view, and their time."""
    of, steps = trace.placement, max(len(trace.steps), 1)
    if of is None or not of.ops_total:
        return []
    kinds = [("Launch work on the GPU", of.ops_device, of.device_ns)] if trace.gpu.activities else []
    kinds += [
        ("Compute or copy on the host", of.ops_host, of.host_ns),
        ("Views and allocations", of.ops_view, of.view_ns),
    ]
    facts = []
    for name, calls, ns in kinds:
        words = fmt.count(round(calls / steps, 2))
        facts.append((name, words if ns is None else f"{words}, {fmt.duration_ns(ns / steps)}"))
    per = " per step" if trace.steps else ""
    body = render("page/facts", facts=facts)
    body += note(
        f"Calls{per}, and the GPU time of those that launch work, else their own host time. Operators that others call "
        "count here, too."
    ).html
    return [Explained(render("page/folded", title="Where operators run", body=body))]


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
