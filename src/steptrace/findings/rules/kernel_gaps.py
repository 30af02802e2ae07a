"""The GPU's own gaps between queued kernels take much of the step."""

from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.base import Document, field
from steptrace.findings.rule import Match, Rule, Threshold, TraceFigures, Words, advise
from steptrace.findings.thresholds import HIGH, MODERATE
from steptrace.findings.window import Window
from steptrace.format import duration, plural, share
from steptrace.limits import KERNEL_WAIT_BELOW_NS

#: The most operators that are named.
_MOST_NAMED: Final = 3
_GAP: Final = Threshold(KERNEL_WAIT_BELOW_NS, "Holistic Trace Analysis calls such a gap the GPU's own", unit="ns")


class Gaps(Document, frozen=True, kw_only=True):
    """Gaps before the work of one operator in a mean step."""

    op: Annotated[str | None, field("The operator whose work ended them; null outside operators.")]
    count: Annotated[float, field("How many.")]
    ns: Annotated[float, field("Their time.")]


class Figures(TraceFigures, frozen=True, kw_only=True):
    """Idle time of the GPU between queued kernels."""

    gaps_ns: Annotated[float, field("All of it.")]
    gaps_share: Annotated[float, field("The same as a share of the step.")]
    mean_gap_ns: Annotated[float | None, field("Mean length of a listed gap.")]
    before: Annotated[tuple[Gaps, ...], field("By the operator whose work came next, most time first.")]


def _find(window: Window) -> Iterator[Match[Figures]]:
    gaps_ns = window.parts.get("idle_between_kernels", 0.0)
    if window.share(gaps_ns) < MODERATE.value:
        return
    rows = [row for row in window.entry.idle.ended_by if row.cause == "between_kernels"]
    count = sum(row.gaps for row in rows)
    listed_ns = sum(row.idle_ns for row in rows)
    yield Match(
        severity="warning" if window.share(gaps_ns) >= HIGH.value else "info",
        figures=Figures(
            steps=window.steps,
            step_ns=window.step_ns,
            device_module=window.entry.device_module,
            gaps_ns=gaps_ns,
            gaps_share=window.share(gaps_ns),
            mean_gap_ns=listed_ns / count if count else None,
            before=tuple(
                Gaps(op=row.op, count=window.per_step(row.gaps), ns=window.per_step(row.idle_ns))
                for row in rows[:_MOST_NAMED]
            ),
        ),
        cost_ns_per_step=gaps_ns,
    )


def _words(figures: Figures) -> Words:
    per = figures.per
    evidence = [f"GPU idle between queued kernels: {duration(figures.gaps_ns)} of {duration(figures.step_ns)} {per}"]
    if figures.mean_gap_ns is not None:
        evidence.append(f"a gap takes {duration(figures.mean_gap_ns)} on average")
    evidence += [
        f"before {row.op or 'work outside operators'}: {plural(round(row.count, 1), 'gap')}, {duration(row.ns)} {per}"
        for row in figures.before
    ]
    return Words(
        f"the GPU's own gaps between kernels take {share(figures.gaps_share)} of the time",
        tuple(evidence),
        (*_ADVICE, *_CUDA_ADVICE) if figures.on_cuda else _ADVICE,
    )


_ADVICE: Final = advise(
    "Let fewer and longer kernels do the work: torch.compile fuses neighbours, `foreach=True` or `fused=True` "
    "makes an optimizer's kernels few, and a larger batch makes each kernel longer.",
)
_CUDA_ADVICE: Final = advise(
    'A CUDA graph shortens the gaps between its kernels (`torch.compile(mode="reduce-overhead")`).',
)

RULE: Final = Rule(
    name="kernel_gaps",
    topic="waiting",
    figures=Figures,
    words=_words,
    in_trace=_find,
    condition="the GPU is idle for at least {least} of the step in gaps under {gap} between kernels that were queued "
    "one behind the other on a stream; a warning from {high} on",
    thresholds={"least": MODERATE, "high": HIGH, "gap": _GAP},
    source="the shares are those of launch overhead",
    advice=(*_ADVICE, *_CUDA_ADVICE),
    counter_check="The gaps come with each kernel: count the kernels of a step before and after. Some idle time "
    "between kernels always stays, so the bound is never reached whole.",
    gpu_work=True,
)
