"""The page of `steptrace analyze`: summary.json's content as one self-contained HTML file."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup
from msgspec.structs import replace

from steptrace import format as fmt
from steptrace.documents.column import subjects_of
from steptrace.documents.estimate import Estimate
from steptrace.documents.finding import SEVERITIES, Finding
from steptrace.documents.ranks import Ranks
from steptrace.documents.step_figures import STEP_FIGURES
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.documents.syncs import predicted_site
from steptrace.engine.kinds import counts_in_words
from steptrace.files import write_text
from steptrace.findings.estimated import busy_words, memory_words, step_words
from steptrace.findings.predicted import predicted_findings
from steptrace.findings.quality import FEW_STEPS
from steptrace.findings.window import window_of
from steptrace.limits import NOISE_FLOOR, PROFILER_OVERHEAD, SLOW_PROFILE
from steptrace.report.draw import bars as draw
from steptrace.report.draw.bars import legend_of
from steptrace.report.draw.cells import parts_cell
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page.findings import MOST_FINDINGS, findings, recommended
from steptrace.report.page.markup import Html, gain, page, render, sentence
from steptrace.report.page.overview import device_of_traces, overview_parts
from steptrace.report.page.table import Explained
from steptrace.report.trace.charts import span_chart
from steptrace.report.trace.model import TraceView, build
from steptrace.report.trace.ranks import rank_sections
from steptrace.report.trace.sections import Spot, section

_PREDICTED: Final = "Predicted for a GPU"
#: A prediction as prediction.json has it, and its estimates.
Predicted = tuple[Mapping[str, Any], Sequence[Estimate]]


def write(summary: Summary, out: Path, title: str | None = None, predicted: Predicted | None = None) -> None:
    """Write the page of a summary.json's content.

    Args:
        summary: the content.
        out: the page's file.
        title: its heading; default: the name of the trace, or how many there are.
        predicted: of the same program on a GPU that is not there; shown with one trace.

    Raises:
        RecordError: the summary holds no traces.
    """
    traces = build(summary)
    title = title or (traces[0].title if len(traces) == 1 else f"{len(traces)} traces")
    write_text(out, page_html(title, traces, summary.ranks, summary.warnings, predicted))


def page_html(
    title: str,
    traces: Sequence[TraceView],
    ranks: Ranks | None,
    warnings: Sequence[str] = (),
    predicted: Predicted | None = None,
) -> str:
    """The whole page: one trace with a section a topic, or all traces side by side and then each by itself."""
    if len(traces) == 1:
        shown, body = _sections(traces[0], Spot(alone=True, prefix=""))
        if predicted is not None:
            shown = [("predicted", _PREDICTED), *shown]
            body = _predicted(*predicted) + body
        intro = _intro(title, traces, shown, warnings, _first(traces, (), predicted), predicted)
        return page(f"{title} – steptrace", intro + body, shown)
    together = [] if ranks is None else rank_sections(ranks)
    toc = [("ranks", "All traces"), *((id_, heading) for id_, heading, _ in together)]
    on_ranks = () if ranks is None else ranks.findings
    toc += [("findings", "Findings on all ranks")] if on_ranks else []
    toc += [(f"trace-{i}", view.title) for i, view in enumerate(traces)]
    overview = render("trace/_ranks", traces=traces, figures=STEP_FIGURES, chart=span_chart(traces))
    overview += Markup("").join(_section(id_, heading, parts) for id_, heading, parts in together)
    if on_ranks:
        heading = "Findings on all ranks together"
        overview += render("trace/_findings", findings=findings(on_ranks), level=2, id="findings", heading=heading)
    each = [
        render(
            "trace/_block",
            title=view.title,
            id=f"trace-{i}",
            sentence=" ".join([headline(view), *caution(view)]),
            body=_sections(view, Spot(alone=False, prefix=f"trace-{i}-"))[1],
        )
        for i, view in enumerate(traces)
    ]
    return page(
        f"{title} – steptrace",
        _intro(title, traces, toc, warnings, _first(traces, on_ranks)) + overview + Markup("").join(each),
        toc,
    )


def _predicted(prediction: Mapping[str, Any], estimates: Sequence[Estimate]) -> Html:
    """What the same program would do on a GPU that is not there."""
    rows = [
        {
            "one": one,
            "step": step_words(one),
            "busy": busy_words(one),
            "memory": memory_words(one),
        }
        for one in estimates
    ]
    sites = _most_first(prediction["sites"])
    ranks = len(prediction.get("by_rank") or ())
    return render(
        "trace/predicted", heading=_PREDICTED, total=prediction["total"], sites=sites, rows=rows, ranks=ranks,
        assumed=prediction.get("assumed") or (), unknown=prediction["unknown"],
        kinds=counts_in_words(prediction.get("by_step") or ()),
    )  # fmt: skip


def _most_first(sites: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(sites, key=lambda site: -site["count"])


def _in_a_sentence(prediction: Mapping[str, Any], estimates: Sequence[Estimate]) -> str:
    """Syncs and step time on a GPU, as predicted."""
    times = [f"{step_words(one)} on {one.gpu}" for one in estimates if one.step_ms is not None]
    total = prediction["total"]
    syncs = f"{fmt.count(total)} sync{'' if total == 1 else 's'} per step"
    return f"Predicted for a GPU: {', '.join([syncs, *times])}."


def _first(traces: Sequence[TraceView], together: Sequence[Finding], predicted: Predicted | None = None) -> Html:
    """What to do first, or that there is nothing. Without a GPU predicted syncs lead."""
    text = _nothing_to_advise(traces)
    if len(traces) > 1:
        return render("trace/_first", text=text, **first_of_all(traces, together))
    every = traces[0].trace.findings
    if predicted is not None and not traces[0].has_gpu:
        syncs = list(predicted_findings(map(predicted_site, _most_first(predicted[0]["sites"]))))
        chosen = [*syncs, *recommended(every)][:MOST_FINDINGS]
        return render("trace/_first", text=text, items=chosen, more=0, anchor="predicted" if syncs else "findings")
    chosen = recommended(every)
    return render("trace/_first", text=text, items=chosen, more=len(every) - len(chosen), anchor="findings")


def _nothing_to_advise(traces: Sequence[TraceView]) -> str:
    """Why nothing is advised: nothing was measured on a GPU, or no finding is worth it."""
    if not any(view.has_gpu for view in traces):
        return "No findings from the host's times. Syncs, idle time and kernels need a GPU and were not measured."
    if any(view.trace.findings for view in traces):
        return "Nothing to change in the program that would save 1 % of a step."
    return "No findings."


def first_of_all(traces: Sequence[TraceView], together: Sequence[Finding]) -> dict[str, Any]:
    """What to do first on several traces: each rule once, where it is severest and dearest, and whose it is."""
    every = [*together, *(replace(item, variant=view.title) for view in traces for item in view.trace.findings)]
    ranked = sorted(every, key=lambda item: (SEVERITIES.index(item.severity), -(item.cost_ns_per_step or 0)))
    chosen = recommended(ranked)
    places = {view.title: f"trace-{i}-findings" for i, view in enumerate(traces)}
    anchor = places.get(chosen[0].variant, "findings") if chosen and chosen[0].variant else "findings"
    return {"items": chosen, "more": len(every) - len(chosen), "anchor": anchor}


def headline(view: TraceView, predicted: Predicted | None = None) -> str:
    """The result of a trace in a sentence: shares of the steps, or of the GPU's span without any.

    Without a GPU the step time, if unprofiled steps were timed, and what is predicted for a GPU.
    """
    trace = view.trace
    if not view.has_gpu:
        measured = "No GPU activity in this trace: its GPU figures were not measured."
        if trace.unprofiled_step_ns is not None:
            measured = f"A step takes {_unprofiled(trace)} on this CPU (median); GPU figures were not measured."
        return measured if predicted is None else f"{measured} {_in_a_sentence(*predicted)}"
    over = "the profiled step" if trace.steps else "the GPU's span"
    parts = {part.label: part.ms for part in overview_parts(trace.overview)}
    idle = {cause: parts.get(f"idle_{cause}", 0.0) for cause in draw.IDLE_CAUSES}
    busy = trace.gpu_busy_pct
    clauses = ["GPU busy: not measured" if busy is None else f"GPU busy {fmt.percent(busy)} of {over}"]
    if any(idle.values()):
        cause = max(idle, key=lambda name: idle[name])
        share = idle[cause] / sum(parts.values())
        clauses.append(f"idle {fmt.share(share)} {_IDLE[cause]}{_removable(trace, f'idle_{cause}', share)}")
    if trace.syncs.per_step is not None:
        syncs = "sync" if trace.syncs.per_step == 1 else "syncs"
        clauses.append(f"{fmt.count(trace.syncs.per_step)} {syncs} per step{_cheap(trace)}")
    elif view.sync_count is not None:
        clauses.append(f"{fmt.plural(view.sync_count, 'sync')} in the whole trace")
    return "; ".join(clauses) + "."


#: Why a GPU is idle, in a sentence.
_IDLE: Final = {
    "sync": "after a sync",
    "loader": "while the host waits for data",
    "host": "because nothing was launched",
    "dependency": "for a stream or event dependency",
    "unknown": "for an unknown reason",
}


def _cheap(trace: TraceSummary) -> str:
    """That the syncs cost next to nothing, where that is so."""
    window, ceiling_ns = window_of(trace), trace.syncs.ceiling_ns
    if not trace.syncs.count or ceiling_ns is None or window.share(window.per_step(ceiling_ns)) >= NOISE_FLOOR:
        return ""
    return f", worth under {fmt.setting(NOISE_FLOOR)} of it"


def _removable(trace: TraceSummary, cause: str, idle: float) -> str:
    """How much of the idle time after syncs goes with them, where that is less."""
    window, ceiling_ns = window_of(trace), trace.syncs.ceiling_ns
    if cause != "idle_sync" or ceiling_ns is None:
        return ""
    share = window.share(window.per_step(ceiling_ns))
    return f" (of which the syncs cost at most {fmt.share(share)})" if share < idle else ""


def caution(view: TraceView) -> list[str]:
    """What a reader must know of the record before any figure of it: its steps, its stacks, what it is a record of."""
    trace, count = view.trace, len(view.trace.steps)
    cautions = []
    if not count:
        cautions.append("The trace marks no steps: figures are of all of it")
    elif count < FEW_STEPS:
        cautions.append(
            "One step only; it may be untypical" if count == 1 else f"{count} steps only; they may be untypical"
        )
    if trace.program.stacks and trace.unprofiled_step_ns is None:
        cautions.append("Python stacks were recorded: they slow the host, so idle time is an upper bound")
    if (slower := _slower(trace)) is not None:
        times = f"A profiled step took {fmt.multiple(slower)} the time of an unprofiled one"
        most = "most of the time below is the profiler's" if slower >= SLOW_PROFILE else "part of it is the profiler's"
        cautions.append(f"{times}: {most}")
    if trace.training is False:
        cautions.append("Neither a backward pass nor an optimizer step is in the trace: probably inference")
    return [f"{text}." for text in cautions]


def _slower(trace: TraceSummary) -> float | None:
    """How many times as long as an unprofiled step a profiled one took, where that is more than usual."""
    if not trace.unprofiled_step_ns or not trace.steps:
        return None
    slower = statistics.mean(step.dur_ns for step in trace.steps) / trace.unprofiled_step_ns
    return slower if slower > PROFILER_OVERHEAD else None


def in_words(summary: Summary) -> str:
    """The page in a few lines of plain text: the headline of one trace, the first finding of one or all, cautions."""
    traces = build(summary)
    together = () if summary.ranks is None else summary.ranks.findings
    items = recommended(traces[0].trace.findings) if len(traces) == 1 else first_of_all(traces, together)["items"]
    lines = [headline(traces[0]) if len(traces) == 1 else f"{len(traces)} traces"]
    cautions = caution(traces[0]) if len(traces) == 1 else []
    if not items:
        return "\n".join([*lines, _nothing_to_advise(traces), *cautions])
    first = items[0]
    if traces[0].trace.unprofiled_step_ns is not None and traces[0].trace.steps:
        profiled = fmt.duration_ms(traces[0].step_ms)
        lines.append(f"Of profiled steps ({profiled} each, unprofiled {_unprofiled(traces[0].trace)}):")
    whose = f"{first.variant}: " if first.variant else ""
    lines.append(f"First: {whose}{first.claim}")
    saves = f"{sentence(gain(first))}." if gain(first) else ""
    return "\n".join([*lines, *(f"  {text}" for text in (saves, first.advice) if text), *cautions])


def _unprofiled(trace: TraceSummary) -> str:
    """The step time before the profiler was on: the only claim about speed."""
    return fmt.duration_ns(trace.unprofiled_step_ns)


def _intro(
    title: str,
    traces: Sequence[TraceView],
    toc: Sequence[tuple[str, str]],
    warnings: Sequence[str],
    to_do: Html,
    predicted: Predicted | None = None,
) -> Html:
    first, trace = traces[0], traces[0].trace
    # Without steps there is no figure of one: such figures are left out, not "not measured".
    shown = [f for f in STEP_FIGURES if not f.name.endswith("_per_step") or any(view.trace.steps for view in traces)]
    shown = [f for f in shown if any(view.has_gpu or getattr(view.trace, f.name) is not None for view in traces)]
    coverage = trace.quality.launch_coverage
    facts: list[tuple[str, str | None]] = [("Device", _devices(traces)), ("Traces", str(len(traces)))]
    profiled = "Profiled step" if len(trace.steps) == 1 else "Profiled step, median"
    if len(traces) == 1:
        facts = [
            ("Device", trace.device_name or (None if trace.device is None else f"GPU {trace.device}")),
            ("Rank", None if trace.rank is None else str(trace.rank)),
            ("Steps", str(len(trace.steps))),
            *([("Unprofiled step, median", _unprofiled(trace))] if trace.unprofiled_step_ns is not None else ()),
            *([("Unprofiled step, mean", fmt.duration_ns(trace.unprofiled_mean_ns))] if trace.step_kinds else ()),
            (profiled, fmt.duration_ms(first.step_ms) if trace.steps else None),
            *((f.heading, fmt.with_unit(getattr(trace, f.name), f.unit)) for f in shown),
            *([("GPU work with its launch", fmt.share(coverage))] if coverage is not None and coverage < 1 else ()),
        ]
    sentence = headline(first, predicted) if len(traces) == 1 else None
    # What the headline has need not stand there twice.
    warned = [[text for text in v.trace.quality.warnings if v.has_gpu or not text.startswith(_NO_GPU)] for v in traces]
    care = [(view.title, texts) for view, texts in zip(traces, warned, strict=True) if texts]
    return render(
        "trace/_intro",
        traces=traces,
        title=title,
        headline=sentence,
        unprofiled=len(traces) == 1 and trace.unprofiled_step_ns is not None,
        goes=_where_it_goes(trace) if len(traces) == 1 else None,
        caution=caution(first) if len(traces) == 1 else (),
        device=device_of_traces(
            [view.trace.device_name for view in traces], has_gpu=any(view.has_gpu for view in traces)
        ),
        first=to_do,
        facts=facts,
        terms=[f"StepFigures.{figure.name}" for figure in shown],
        toc=toc,
        warnings=warnings,
        care=care,
    )


_NO_GPU: Final = "no GPU activity"


def _where_it_goes(trace: TraceSummary) -> tuple[InlineSvg, list[tuple[str, str]]] | None:
    """A bar of the step's parts, and each part's colour with its name and share; None where they are not known."""
    parts = [part for part in overview_parts(trace.overview) if part.ms]
    total = sum(part.ms for part in parts)
    named = zip(parts, legend_of(part.label for part in parts), strict=True)
    words = [
        (colour, f"{name} {fmt.share(part.ms / total)}{_removable(trace, part.label, part.ms / total)}")
        for part, (name, colour, _) in named
    ]
    return (parts_cell(parts, total), words) if parts else None


def _devices(traces: Sequence[TraceView]) -> str | None:
    """The names of all traces' GPUs, each with its number; None where there is no GPU or no name."""
    names = Counter(view.trace.device_name for view in traces if view.trace.device_name)
    return ", ".join(f"{count} × {name}" if count > 1 else name for name, count in names.items()) or None


def _sections(view: TraceView, spot: Spot) -> tuple[list[tuple[str, str]], Html]:
    """The sections of one trace in the order of its subjects, with the contents.

    The findings stand behind the overview. What has nothing to show is named with its reason in a line at the end.
    """
    shown, body, absent = list[tuple[str, str]](), Html(""), dict[str, list[str]]()
    level = 2 if spot.alone else 3
    for subject in subjects_of(TraceSummary):
        parts = section(view, subject, spot)
        if parts is None:
            absent.setdefault(subject.absent, []).append(subject.heading)
            continue
        id_ = spot.prefix + subject.name
        body += _section(id_, subject.heading, parts, level=level, folded=subject.folded)
        shown.append((id_, subject.heading))
        if subject.name == "overview" and view.trace.findings:
            items, id_ = findings(view.trace.findings, spot.prefix), f"{spot.prefix}findings"
            body += render("trace/_findings", findings=items, level=level, id=id_, heading="Findings")
            shown.append((id_, "Findings"))
    return shown, Html(body + render("trace/_absent", absent=absent))


def _section(id_: str, heading: str, parts: Sequence[Explained], *, level: int = 2, folded: bool = False) -> Html:
    meanings = {item.term: item for part in parts for item in part.meanings}
    body = Markup("").join(part.html for part in parts)
    return render(
        "trace/_section", id=id_, heading=heading, level=level, folded=folded, meanings=[*meanings.values()], body=body
    )
