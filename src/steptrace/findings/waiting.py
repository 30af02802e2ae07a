"""Rules on a GPU that waits: for syncs, for the host's launches, for whatever else."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from steptrace.documents.finding import Severity, Source
from steptrace.documents.idle import HostGap, HostGaps
from steptrace.documents.launches import Launches
from steptrace.documents.syncs import Site, place_of
from steptrace.findings.replacements import counter_check, replacement
from steptrace.findings.rule import WORDS, Match, Rule, Thresholds, Window, rule
from steptrace.format import duration, plural
from steptrace.format import share as percent
from steptrace.limits import (
    HOST_BOUND,
    LONG_CALL_NS,
    MODERATE_SHARE,
    NOISE_FLOOR,
    OVERHEAD_HIGH,
    OVERHEAD_MODERATE,
)

#: Kernels shorter than this can end before the host has launched the next: a launch costs it 3-10 microseconds.
SHORT_KERNEL_NS: Final = 10_000
_OPS: Final = "in operators"
#: The upper bound of all syncs together must be so many times the sum of the bounds one by one.
_TOGETHER: Final = 1.5


def _sync_sites(window: Window) -> Iterator[Match]:
    """The sync sites of a step that cost time by themselves."""
    per = window.per
    for site in window.entry.syncs.sites if window.parts else ():
        most_ns, idle_ns = window.per_step(site.ceiling_ns or 0), window.per_step(site.exposed_idle_ns or 0)
        yield Match(
            severity="high" if window.share(most_ns) >= MODERATE_SHARE else "warning",
            claim=f"{place_of(site)} makes the host wait for the GPU ({site.op or site.kind})"
            + (f", and the GPU is then idle for {duration(idle_ns)} {per}" if idle_ns else ""),
            evidence=(
                f"syncs: {site.how_often_in_words}" if window.steps else plural(site.count, "sync") + f" {per}",
                f"host blocked {duration(window.per_step(site.blocked_ns))} {per}",
                f"removing it saves {duration(most_ns)} of {duration(window.step_ns)} {per} at most",
                *([f"code: {site.code}"] if site.code else []),
            ),
            cost_ns_per_step=most_ns,
            source=source_of(site),
            advice=replacement(site),
            counter_check=counter_check(site),
        )


def source_of(site: Site) -> Source | None:
    """The line of a site; of a predicted one in a library the program's."""
    file, line = site.program or (site.file, site.line)
    return None if file is None or line is None else Source(file=file, line=line)


def _syncs_together(window: Window) -> Iterator[Match]:
    """Whether a step's syncs cost time only all together."""
    syncs, sites, per = window.entry.syncs, window.entry.syncs.sites, window.per
    if len(sites) < 2 or not window.parts:
        return
    most_ns, alone_ns = (
        window.per_step(syncs.ceiling_ns or 0),
        window.per_step(sum(site.ceiling_ns or 0 for site in sites)),
    )
    if most_ns < _TOGETHER * alone_ns:
        return
    longest = sorted(sites, key=lambda site: -site.blocked_ns)[:_NAMED]
    names = list(dict.fromkeys(map(place_of, sorted(sites, key=lambda site: -site.blocked_ns))))
    yield Match(
        severity="high" if window.share(most_ns) >= MODERATE_SHARE else "warning",
        claim=f"{len(sites)} sites sync one after another, and removing only one moves the wait to the next: "
        f"{'; '.join(names[:_NAMED])}{'; …' if len(names) > _NAMED else ''}",
        evidence=(
            f"removing all of them saves {duration(most_ns)} of {duration(window.step_ns)} {per} at most",
            f"removing one at a time saves {duration(alone_ns)} in all at most",
            *(f"{place_of(s)}: host blocked {duration(window.per_step(s.blocked_ns))} {per}" for s in longest),
        ),
        cost_ns_per_step=most_ns,
        source=source_of(longest[0]),
    )


def _host_bound(window: Window) -> Iterator[Match]:
    """Whether the GPU is idle because the host has launched nothing, and what the host does meanwhile."""
    idle_ns, launches = window.parts.get("idle_host"), window.entry.launches
    if idle_ns is None or launches is None or launches.device_ns is None:
        return
    (most_ns, step_ns), share = window.without_profiler(idle_ns), window.waits_for_host
    if share < OVERHEAD_MODERATE:
        return
    gaps = window.entry.host_gaps or HostGaps(gap_ns=0, long_call_ns=0, gaps=())
    spent = _spent(window, gaps)
    profiled = step_ns == window.step_ns
    of_step = f"{'' if profiled else 'at most '}{percent(share)} of {'a step' if window.steps else 'the trace'}"
    if not profiled:
        of_step += f" ({percent(window.share(idle_ns))} of a profiled one)"
    kernels = window.entry.kernels_per_step or window.per_step(launches.activities)
    # With Python stacks part of it is the profiler's, and no unprofiled step says how much.
    slowed = window.host_may_be_slowed
    severity = "info" if slowed else _host_severity(share)
    name = "possibly host-bound" if slowed else _HOST_BOUND_NAMES[severity]
    meanwhile = ", ".join(f"{duration(ns)} {name}" for name, ns in spent if ns)
    work = f"{plural(round(kernels, 1), 'kernel')} {window.per}; the median launch has "
    yield Match(
        severity=severity,
        claim=f"{name}: for {of_step} the GPU is idle because nothing was launched"
        + (f", mostly while the host is {spent[0][0]}" if spent else ""),
        evidence=(
            f"GPU idle for that reason: {duration(idle_ns)} of {duration(window.step_ns)} {window.per}",
            *(
                [f"an unprofiled step of {duration(step_ns)} leaves at most {duration(most_ns)} beside the GPU's work"]
                if not profiled
                else []
            ),
            *([f"the host meanwhile: {meanwhile}"] if meanwhile else []),
            work + f"{duration(launches.device_ns.median)} of GPU work",
            *_gaps_in_words(gaps.gaps[:_NAMED]),
        ),
        cost_ns_per_step=most_ns,
        cost_share=share,
        advice=_host_advice(window, launches, idle_ns, spent),
    )


def _host_severity(share: float) -> Severity:
    """How much it matters that a GPU is idle for this share of a step because nothing was launched."""
    if share >= HOST_BOUND:
        return "high"
    return "warning" if share >= OVERHEAD_HIGH else "info"


#: What a step is called, by how much it matters. Nothing else is called host-bound.
_HOST_BOUND_NAMES: Final[Mapping[Severity, str]] = {
    "high": "host-bound",
    "warning": "partly host-bound",
    "info": "slightly host-bound",
}


def _kernel_gaps(window: Window) -> Iterator[Match]:
    """Whether the GPU's own gaps between kernels take much of the step."""
    gaps_ns = window.parts.get("idle_between_kernels", 0.0)
    share = window.share(gaps_ns)
    if share < OVERHEAD_MODERATE:
        return
    rows = [row for row in window.entry.idle.ended_by if row.cause == "between_kernels"]
    count, listed_ns = sum(row.gaps for row in rows), sum(row.idle_ns for row in rows)
    yield Match(
        severity="warning" if share >= OVERHEAD_HIGH else "info",
        claim=f"the GPU's own gaps between kernels take {percent(share)} of the time",
        evidence=(
            f"GPU idle between queued kernels: {duration(gaps_ns)} of {duration(window.step_ns)} {window.per}",
            *([f"a gap takes {duration(listed_ns / count)} on average"] if count else []),
            *(
                f"before {row.op or 'work outside operators'}: {plural(round(window.per_step(row.gaps), 1), 'gap')}, "
                f"{duration(window.per_step(row.idle_ns))} {window.per}"
                for row in rows[:_NAMED]
            ),
        ),
        cost_ns_per_step=gaps_ns,
    )


def _spent(window: Window, gaps: HostGaps) -> list[tuple[str, float]]:
    """What the host did while the GPU was idle, the longest first; empty where the record does not say."""
    if gaps.call_ns is None or gaps.op_ns is None:
        return []
    outside = "in Python between operators" if window.entry.program.stacks else "outside operators"
    rest = gaps.gap_ns - gaps.call_ns - gaps.op_ns
    parts = [(outside, rest), (_OPS, gaps.op_ns), ("in calls into the GPU's runtime", gaps.call_ns)]
    return [(name, window.per_step(ns)) for name, ns in sorted(parts, key=lambda part: -part[1])]


def _host_advice(window: Window, launches: Launches, idle_ns: float, spent: Sequence[tuple[str, float]]) -> str:
    """What to do by what fills most of the gaps: long calls, a few long gaps, launches, operators, or Python.

    By the median of a launch's work, since a few long kernels (collectives above all) do not help the many short ones
    around them.
    """
    gaps = window.entry.host_gaps
    if gaps is not None and gaps.gap_ns and gaps.long_call_ns >= _MOSTLY * gaps.gap_ns:
        return _FIRST_CALL
    long_ns = 0 if gaps is None else sum(gap.dur for gap in gaps.gaps if gap.dur >= LONG_CALL_NS)
    work_ns = 0.0 if launches.device_ns is None else launches.device_ns.median
    advice = _LOOK_AT_GAPS
    few = gaps is not None and long_ns >= _MOSTLY * gaps.gap_ns
    if not few and work_ns < SHORT_KERNEL_NS and idle_ns / max(window.per_step(launches.count), 1) < LONG_CALL_NS:
        quick_ns = 0 if gaps is None or gaps.call_ns is None else gaps.call_ns - gaps.long_call_ns
        in_ops = bool(spent) and spent[0][0] == _OPS
        advice = _OPERATORS if in_ops else _PYTHON_CODE
        if gaps is not None and quick_ns >= _MOSTLY * gaps.gap_ns:
            advice = _LAUNCH_LESS
    if not window.host_may_be_slowed:
        return advice
    return f"{advice} {_NO_STACKS}"


def _gaps_in_words(gaps: Sequence[HostGap]) -> list[str]:
    """The gaps, those alike together: how long, where, and what calls the host was in for a good part of them."""
    alike: dict[str, list[int]] = {}
    for gap in gaps:
        alike.setdefault(_place_of_gap(gap), []).append(gap.dur)
    return [f"{_lengths_in_words(lengths)} {place}" for place, lengths in alike.items()]


def _lengths_in_words(lengths: Sequence[int]) -> str:
    least, most = duration(min(lengths)), duration(max(lengths))
    of = least if least == most else f"{least} to {most}"
    return f"a gap of {of}" if len(lengths) == 1 else f"in the whole trace {len(lengths)} gaps of {of}"


def _place_of_gap(gap: HostGap) -> str:
    calls = [call for call in gap.calls if call.ns >= _WORTH_NAMING * gap.dur]
    words = " and ".join(
        f"{duration(call.ns)} in " + (call.name if call.count == 1 else f"{call.count} x {call.name}") for call in calls
    )
    launch = f"before a launch by {gap.op}" if gap.op else "before a launch outside operators"
    at = {"before": "before the first GPU work", "after": "after the last GPU work"}.get(gap.where, launch)
    label = f" in {gap.label}" if gap.where == "between" and gap.op and gap.label else ""
    return f"{at}{label}" + (f": {words}" if words else ", the host in no call of the GPU's runtime")


#: Of the gaps' time, what calls fill where they are the cause; of one gap, what makes a call worth naming.
_MOSTLY, _WORTH_NAMING = 0.5, 0.1
#: So many gaps are named.
_NAMED: Final = 3

_NO_STACKS: Final = (
    "Before that, profile again without Python stacks (`with_stack=False`): they slow the host, so part of the idle "
    "time is the profiler's."
)
_LAUNCH_LESS: Final = (
    "Launch less: a CUDA graph launches many kernels by one call, torch.compile fuses them, and a larger batch makes "
    "each longer."
)
_LOOK_AT_GAPS: Final[str] = WORDS["host_bound"]["advice"]
_PYTHON_CODE: Final = (
    "Let less Python run between the operators: torch.compile, or a CUDA graph of the step "
    '(`torch.compile(mode="reduce-overhead")`), which replays the launches of a step without Python and operators.'
)
_OPERATORS: Final = (
    'Call fewer operators: `torch.compile(model, mode="reduce-overhead")` fuses them, and replays the launches of a '
    "step as a CUDA graph."
)
_FIRST_CALL: Final = (
    "The first call of its kind loads the context, a module or a library: let some warm-up steps run before the "
    "profiler records (`torch.profiler.schedule(wait=..., warmup=...)`). cudaMalloc and cudaFree in later steps mean "
    "that PyTorch's allocator grows and shrinks: keep shapes the same from step to step."
)
#: The thresholds that the rules' words name.
_BOUND: Final[Thresholds] = {"least": NOISE_FLOOR, "high": MODERATE_SHARE}

WAITING_RULES: Final[tuple[Rule[Window], ...]] = (
    rule("sync_bound", _sync_sites, _BOUND),
    rule("syncs_together", _syncs_together, {**_BOUND, "times": f"{_TOGETHER:g}"}),
    rule("host_bound", _host_bound, {"least": OVERHEAD_MODERATE, "partly": OVERHEAD_HIGH, "bound": HOST_BOUND}),
    rule("kernel_gaps", _kernel_gaps, {"least": OVERHEAD_MODERATE, "high": OVERHEAD_HIGH}),
)
