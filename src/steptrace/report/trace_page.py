"""The page of `steptrace analyze`: summary.json's content as one self-contained HTML file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from steptrace.report import definitions as defs
from steptrace.report import format as fmt
from steptrace.report import parts_figures
from steptrace.report.build import finding
from steptrace.report.html import findings
from steptrace.report.markup import Html, page, render
from steptrace.report.topics import RANK_TOPICS, TOPICS, RankTopic, Topic
from steptrace.report.trace_model import TraceView, build


def write(summary: Mapping[str, Any], out: Path) -> None:
    """Write the page of a summary.json's content.

    Raises:
        RecordError: the summary holds no traces.
    """
    text = page_html(build(summary), summary.get("ranks") or {})
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(out)  # never half a page


def page_html(traces: Sequence[TraceView], ranks: Mapping[str, Any]) -> str:
    """The whole page: one trace with a section a topic, or all ranks side by side and then each by itself."""
    if len(traces) == 1:
        trace = traces[0]
        toc = [
            *((topic.id, topic.heading) for topic in TOPICS),
            *([("findings", "Findings")] if trace.findings else []),
        ]
        return page(f"{trace.title} – steptrace", _intro(traces, toc) + _topics(trace, 2, "", "trace"), toc)
    together = [topic for topic in RANK_TOPICS if topic.shown(ranks)]
    toc = [("ranks", "All traces"), *((topic.id, topic.heading) for topic in together)]
    found = [finding(item) for item in ranks.get("findings") or ()]
    toc += [("findings", "Findings on all ranks")] if found else []
    toc += [(f"trace-{i}", trace.title) for i, trace in enumerate(traces)]
    chart = parts_figures.span_chart(traces, "span")
    overview = render("trace_ranks", traces=traces, chart=chart, terms=defs.definitions(defs.TRACE_TERMS))
    overview += Markup("").join(_rank_topic(topic, ranks, traces) for topic in together)
    if found:
        heading = "Findings on all ranks together"
        overview += render("trace_findings", findings=findings(found), level=2, id="findings", heading=heading)
    each = [
        render(
            "trace_block",
            trace=trace,
            id=f"trace-{i}",
            sentence=headline(trace),
            body=_topics(trace, 3, f"trace-{i}-", f"t{i}"),
        )
        for i, trace in enumerate(traces)
    ]
    return page("Traces – steptrace", _intro(traces, toc) + overview + Markup("").join(each), toc)


def headline(trace: TraceView) -> str:
    """What the trace says, in one sentence made from its data."""
    if not trace.has_gpu:
        return "No GPU activity in this trace: its GPU figures were not measured."
    over = "the steps" if trace.steps else "the GPU's span"
    clauses = [f"GPU busy {fmt.percent(trace.gpu_busy_pct)} of {over}"]
    idle = sum(part.ms for part in trace.idle_causes)
    if idle > 0:
        cause = max(trace.idle_causes, key=lambda part: part.ms)
        name = parts_figures.PART_NAMES.get(cause.label, cause.label)
        clauses.append(f"{fmt.share(cause.ms / idle)} of its idle time: {name}")
    if trace.syncs_per_step is not None:
        syncs = "sync" if trace.syncs_per_step == 1 else "syncs"
        clauses.append(f"{fmt.count(trace.syncs_per_step)} {syncs} per step")
    elif trace.sync_count is not None:
        clauses.append(f"{fmt.plural(trace.sync_count, 'sync')} in the whole trace")
    return "; ".join(clauses) + "."


def _intro(traces: Sequence[TraceView], toc: Sequence[tuple[str, str]]) -> Html:
    first = traces[0]
    facts: list[tuple[str, str | None]] = [("Device", first.device), ("Traces", str(len(traces)))]
    if len(traces) == 1:
        # Without steps nothing can be said of one: these are left out, not "not measured".
        of_steps = [
            ("Profiled step, median length", fmt.duration_ms(first.step_ms)),
            ("Operators per step", fmt.count(first.operators_per_step)),
            ("Kernels per step", fmt.count(first.kernels_per_step)),
        ]
        facts = [
            ("Device", first.device),
            ("Rank", None if first.rank is None else str(first.rank)),
            ("Steps", str(len(first.steps))),
            *(of_steps[:1] if first.steps else ()),
            ("GPU busy", fmt.percent(first.gpu_busy_pct)),
            ("SM-weighted", fmt.percent(first.sm_weighted_pct)),
            *(of_steps[1:] if first.steps else ()),
            ("Launch coverage", fmt.share(first.launch_coverage)),
        ]
    title = first.title if len(traces) == 1 else f"{len(traces)} traces"
    sentence = headline(first) if len(traces) == 1 else None
    return render("trace_intro", traces=traces, title=title, headline=sentence, facts=facts, toc=toc)


def _topics(trace: TraceView, level: int, prefix: str, name: str) -> Html:
    """All topics of one trace under headings of this level; `name` keeps the charts' ids apart."""
    body = Markup("").join(_topic(topic, trace, level, prefix, name) for topic in TOPICS)
    found = (
        render(
            "trace_findings", findings=findings(trace.findings), level=level, id=f"{prefix}findings", heading="Findings"
        )
        if trace.findings
        else Html("")
    )
    return Html(body + found)


def _topic(topic: Topic, trace: TraceView, level: int, prefix: str, name: str) -> Html:
    charts = topic.charts(trace, name)
    body = render(topic.id, folder="topics", t=trace, level=level, charts=charts, **topic.data(trace))
    # Where no figure is shown, none is to be explained.
    shown = any(tag in body for tag in ("<table", "<svg", "<dl"))
    terms = tuple(term.of(steps=bool(trace.steps)) for term in topic.terms) if shown else ()
    return render("trace_topic", id=prefix + topic.id, heading=topic.heading, level=level, terms=terms, body=body)


def _rank_topic(topic: RankTopic, ranks: Mapping[str, Any], traces: Sequence[TraceView]) -> Html:
    charts = topic.charts(ranks, traces)
    body = render(topic.id, folder="topics", ranks=ranks, traces=traces, level=2, charts=charts)
    return render("trace_topic", id=topic.id, heading=topic.heading, level=2, terms=topic.terms, body=body)
