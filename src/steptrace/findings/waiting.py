"""Rules on a GPU that waits: for syncs, for the host's launches, for whatever else."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from steptrace.documents.finding import Source
from steptrace.documents.idle import HostGap, HostGaps
from steptrace.documents.launches import Launches
from steptrace.documents.syncs import BATCH_COPY, Site, is_batch_copy
from steptrace.findings.model import WORDS, Match, Rule, Thresholds, rule
from steptrace.findings.replacements import counter_check, replacement
from steptrace.findings.window import Window
from steptrace.format import duration, number, plural
from steptrace.format import place as code_place
from steptrace.format import share as percent
from steptrace.limits import MODERATE_SHARE, NOISE_FLOOR, OVERHEAD_HIGH, OVERHEAD_MODERATE

#: Kernels shorter than this can end before the host has launched the next: a launch costs it 3-10 microseconds.
SHORT_KERNEL_NS: Final = 10_000
#: A launch with all that leads to it, operator and Python; a host that takes longer on average does something else.
LAUNCH_NS: Final = 250_000
#: From this share of the waiting in calls into the GPU's runtime on, launches are to blame, and not what leads to them.
LAUNCHING_SHARE: Final = 0.5
#: What the host does while the GPU waits for it.
_PYTHON, _BETWEEN, _OPS = "in Python between operators", "outside operators", "in operators"
_CALLS: Final = "in calls into the GPU's runtime"


@dataclass(frozen=True)
class _Wait:
    """GPU idle time in a step for want of a launch, the median of a launch's work, and what the host did meanwhile.

    The median, since a few long kernels (collectives above all) do not help the many short ones around them. `parts`
    are the idle time by what the host did, the longest first; empty where the trace's record does not say.
    `launch_bound` if launches are to blame: many short kernels, and for half of the time the host is in quick calls.
    """

    launches: Launches
    idle_ns: float
    kernel_ns: float
    many_short: bool
    launch_bound: bool
    parts: tuple[tuple[str, float], ...]

    @property
    def in_words(self) -> str:
        """What the host did meanwhile: "2.5 ms in Python, 1.1 ms in operators, 0.3 ms in ..."."""
        return ", ".join(f"{duration(ns)} {name}" for name, ns in self.parts)


def _waiting_for_host(window: Window) -> _Wait | None:
    """How the GPU waits for the host; None where that takes less than a moderate share of the step."""
    idle_ns, launches = window.parts.get("idle_host"), window.entry.launches
    if idle_ns is None or launches is None or launches.device_ns is None or window.share(idle_ns) < OVERHEAD_MODERATE:
        return None
    kernel_ns, each_ns = launches.device_ns.median, idle_ns / max(window.per_step(launches.count), 1)
    many_short, gaps = kernel_ns < SHORT_KERNEL_NS and each_ns < LAUNCH_NS, window.entry.host_gaps
    quick_ns = 0 if gaps is None or gaps.call_ns is None else gaps.call_ns - gaps.long_call_ns
    launching = gaps is not None and quick_ns >= LAUNCHING_SHARE * gaps.gap_ns
    return _Wait(launches, idle_ns, kernel_ns, many_short, many_short and launching, _host_parts(window))


def _host_parts(window: Window) -> tuple[tuple[str, float], ...]:
    gaps = window.entry.host_gaps
    if gaps is None or gaps.call_ns is None or gaps.op_ns is None:
        return ()
    rest = gaps.gap_ns - gaps.call_ns - gaps.op_ns
    parts = ((_PYTHON if window.entry.program.stacks else _BETWEEN, rest), (_OPS, gaps.op_ns), (_CALLS, gaps.call_ns))
    return tuple((name, window.per_step(ns)) for name, ns in sorted(parts, key=lambda part: -part[1]))


#: Busy share of a step below which a GPU counts as idle (Nsight Systems' gpu_time_util, PyTorch's TensorBoard plugin).
BUSY_PCT: Final = 50.0
#: The upper bound of all syncs together must be so many times the sum of the bounds one by one.
_TOGETHER: Final = 1.5


def _gpu_idle(window: Window) -> Iterator[Match]:
    """Where the GPU is idle for most of a profiled step."""
    busy, idle_ns = window.entry.gpu_busy_pct, window.idle_ns
    if idle_ns is None or busy is None or busy >= BUSY_PCT:
        return
    yield Match(
        severity="warning",
        claim=f"the GPU is busy for {percent(busy / 100)} of the step",
        evidence=(f"idle {duration(idle_ns)} of {duration(window.step_ns)} {window.per}",),
        cost_ns_per_step=idle_ns,
        advice=_without_stacks_first(window, WORDS["gpu_idle"]["advice"]),
    )


def _sync_sites(window: Window) -> Iterator[Match]:
    """The sync sites of a step that cost time by themselves."""
    per = window.per
    for site in window.entry.syncs.sites if window.parts else ():
        most_ns = window.per_step(site.ceiling_ns or 0)
        if window.share(most_ns) < NOISE_FLOOR:
            continue
        idle_ns = window.per_step(site.exposed_idle_ns or 0)
        yield Match(
            severity="high" if window.share(most_ns) >= MODERATE_SHARE else "warning",
            claim=f"{place(site)} makes the host wait for the GPU ({site.op or site.kind})"
            + (f", and the GPU then waits for the host: {duration(idle_ns)} idle {per}" if idle_ns else ""),
            evidence=(
                f"{plural(round(window.per_step(site.count), 2), 'sync')} {per}",
                f"host blocked {duration(window.per_step(site.blocked_ns))} {per}",
                f"GPU idle {duration(idle_ns)} {per} from the sync to the next GPU work, of {duration(window.step_ns)}",
                f"removing it saves {duration(most_ns)} {per} at most",
                *([f"code: {site.code}"] if site.code else []),
            ),
            cost_ns_per_step=most_ns,
            source=source_of(site),
            advice=replacement(site),
            counter_check=counter_check(site),
        )


def place(site: Site) -> str:
    """A site's line, or its label without a line."""
    if site.program is not None:
        return f"{code_place(*site.program)} (in {site.file}:{site.line})"
    if site.file is not None:
        return code_place(site.file, site.line, site.function)
    if is_batch_copy(site.file, site.label, site.kind):
        return BATCH_COPY
    return f"a place labelled '{site.label}'" if site.label else "a place without a source line"


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
    if window.share(most_ns) < NOISE_FLOOR or most_ns < _TOGETHER * alone_ns:
        return
    longest = sorted(sites, key=lambda site: -site.blocked_ns)[:_NAMED]
    names = list(dict.fromkeys(map(place, sorted(sites, key=lambda site: -site.blocked_ns))))
    yield Match(
        severity="high" if window.share(most_ns) >= MODERATE_SHARE else "warning",
        claim=f"{len(sites)} sites sync one after another, and removing only one moves the wait to the next: "
        f"{'; '.join(names[:_NAMED])}{'; …' if len(names) > _NAMED else ''}",
        evidence=(
            f"removing all of them saves {duration(most_ns)} of {duration(window.step_ns)} {per} at most",
            f"removing one at a time saves {duration(alone_ns)} in all at most",
            *(f"{place(s)}: host blocked {duration(window.per_step(s.blocked_ns))} {per}" for s in longest),
        ),
        cost_ns_per_step=most_ns,
        source=source_of(longest[0]),
    )


def _launch_bound(window: Window) -> Iterator[Match]:
    wait = _waiting_for_host(window)
    if wait is not None and wait.launch_bound:
        yield _many_launches(window, wait, "launch-bound", _without_stacks_first(window, _LAUNCH_LESS))


def _host_bound(window: Window) -> Iterator[Match]:
    wait = _waiting_for_host(window)
    if wait is None or wait.launch_bound:
        return
    gaps = window.entry.host_gaps or HostGaps(gap_ns=0, long_call_ns=0, gaps=())
    in_calls = gaps.gap_ns > 0 and gaps.long_call_ns >= _MOSTLY * gaps.gap_ns
    if wait.many_short and not in_calls:
        in_ops = bool(wait.parts) and wait.parts[0][0] == _OPS
        fewer = _OPERATORS if in_ops else _PYTHON_CODE
        yield _many_launches(window, wait, "host-bound", _without_stacks_first(window, fewer) or fewer)
        return
    idle_ns, count = wait.idle_ns, window.per_step(wait.launches.count)
    late = in_calls and bool(_WAITS.search(_longest(window, gaps.gaps)[1]))
    named = [_gap_in_words(row) for row in gaps.gaps[:_NAMED]]
    advice = _without_stacks_first(window, _LOOK_AT_GAPS)
    if in_calls:
        why = f"during long calls into the GPU's runtime: {_longest_call(window, gaps.gaps)}"
        advice = _LATE_RETURN if late else _FIRST_CALL
    else:
        why = f"because nothing was launched{_longest_gap(window, gaps.gaps, '; the longest gap is ')}"
    yield Match(
        severity="warning" if window.share(idle_ns) >= OVERHEAD_HIGH else "info",
        claim=f"host-bound: the GPU is idle {why}",
        evidence=(
            _idle_in_words(window, wait),
            f"{number(count)} launches {window.per}, the median with {duration(wait.kernel_ns)} of GPU work",
            *([f"the host meanwhile spends {wait.in_words}"] if wait.parts else []),
            *(named or _longest_endings(window)),
        ),
        cost_ns_per_step=idle_ns,
        advice=advice,
    )


def _without_stacks_first(window: Window, advice: str) -> str | None:
    """The advice behind that to profile without Python stacks, where these may be the reason; None elsewhere."""
    return f"{_NO_STACKS} If it stays: {advice[0].lower()}{advice[1:]}" if window.host_may_be_slowed else None


def _many_launches(window: Window, wait: _Wait, bound: str, advice: str | None) -> Match:
    """A host that cannot launch many short kernels fast enough, and what it does instead."""
    idle_ns, launches = wait.idle_ns, wait.launches
    kernels = window.entry.kernels_per_step or window.per_step(launches.activities)
    share, whole = percent(window.share(idle_ns)), "a step" if window.steps else "the trace"
    meanwhile = f"; the host meanwhile spends {wait.in_words}" if wait.parts else ""
    gaps = () if window.entry.host_gaps is None else window.entry.host_gaps.gaps
    longest = _longest_gap(window, gaps, "; the longest gap is ")
    return Match(
        severity="warning" if window.share(idle_ns) >= OVERHEAD_HIGH else "info",
        claim=f"{bound}: for {share} of {whole} the GPU is idle because nothing was launched{meanwhile}{longest}",
        evidence=(
            _idle_in_words(window, wait),
            f"{number(kernels)} kernels {window.per}",
            f"the median launch has {duration(wait.kernel_ns)} of GPU work",
            f"{launches.short_kernels} of {launches.count} launching calls took longer than their GPU work",
            *_longest_endings(window),
        ),
        cost_ns_per_step=idle_ns,
        advice=advice,
    )


def _idle_in_words(window: Window, wait: _Wait) -> str:
    return f"GPU idle for that reason: {duration(wait.idle_ns)} of {duration(window.step_ns)} {window.per}"


def _longest(window: Window, gaps: Sequence[HostGap]) -> tuple[int, str, HostGap]:
    """The call that fills most of one gap; without steps, what lies beside the GPU's work counts for no gap."""
    counted = [gap for gap in gaps if window.steps or gap.where == "between"] or gaps
    calls = [(call.ns, call.name, gap) for gap in counted for call in gap.calls]
    return max(calls, key=lambda call: call[0])


def _longest_call(window: Window, gaps: Sequence[HostGap]) -> str:
    ns, name, gap = _longest(window, gaps)
    return f"{duration(ns)} in {name} {_where(gap)}"


def _longest_gap(window: Window, gaps: Sequence[HostGap], before: str) -> str:
    """The longest gap that counts, as the end of a sentence: behind `before` its length and its place."""
    counted = [gap for gap in gaps if window.steps or gap.where == "between"]
    return f"{before}{duration(counted[0].dur)} {_where(counted[0])}" if counted else ""


def _gap_in_words(gap: HostGap) -> str:
    """One gap: how long, where, and what calls the host was in for a good part of it."""
    calls = [call for call in gap.calls if call.ns >= _WORTH_NAMING * gap.dur]
    words = " and ".join(
        f"{duration(call.ns)} in " + (call.name if call.count == 1 else f"{call.count} x {call.name}") for call in calls
    )
    return f"a gap of {duration(gap.dur)} {_where(gap)}" + (f": {words}" if words else ", outside the GPU's runtime")


def _where(gap: HostGap) -> str:
    if gap.where != "between":
        return "before the first GPU work" if gap.where == "before" else "after the last GPU work"
    inside = f" in {gap.label}" if gap.label else ""
    return f"before a launch by {gap.op}{inside}" if gap.op else "before a launch outside operators"


def _longest_endings(window: Window) -> list[str]:
    """Which operators' launches the GPU waited for longest."""
    endings = [row for row in window.entry.idle.ended_by if row.cause == "host"]
    return [
        f"{duration(window.per_step(row.idle_ns))} {window.per} before the launches by {row.op}"
        + (f" in {row.label}" if row.label else "")
        for row in endings[:3]
        if row.op
    ]


#: Of the gaps' time, what single long calls fill where they are the cause; of one gap, what makes a call worth naming.
_MOSTLY, _WORTH_NAMING = 0.5, 0.1
#: So many gaps are named.
_NAMED: Final = 3

#: Calls in which the host waits for the GPU. One that goes on while the GPU is idle was late to return.
_WAITS: Final = re.compile(r"(Stream|Device|Event|Ctx)Synchronize\Z")

_LAUNCH_BOUND: Final[Thresholds] = {
    "short": SHORT_KERNEL_NS // 1000,
    "launch": LAUNCH_NS // 1000,
    "launching": LAUNCHING_SHARE,
}

_NO_STACKS: Final = (
    "Profile again without Python stacks (`with_stack=False`): they slow the host, so part of the idle time is the "
    "profiler's."
)
_LAUNCH_LESS: Final = WORDS["launch_bound"]["advice"]
_LOOK_AT_GAPS: Final = WORDS["host_bound"]["advice"]
_PYTHON_CODE: Final = (
    "Let less Python run between the operators: torch.compile, or a CUDA graph of the step "
    '(`torch.compile(mode="reduce-overhead")`), which replays the launches of a step without Python and operators.'
)
_OPERATORS: Final = (
    "Call fewer operators: torch.compile fuses them; a CUDA graph of the step "
    '(`torch.compile(mode="reduce-overhead")`) replays the launches of a step without calling the operators.'
)
_FIRST_CALL: Final = (
    "The first call of its kind loads the context, a module or a library: let some warm-up steps run before the "
    "profiler records (`torch.profiler.schedule(wait=..., warmup=...)`). cudaMalloc and cudaFree in later steps mean "
    "that PyTorch's allocator grows and shrinks: keep shapes the same from step to step."
)
_LATE_RETURN: Final = (
    "The GPU had nothing to do while this call still waited for it: the host's thread came back late. Look for other "
    "processes or threads on its cores, and leave each training process some cores of its own."
)
#: The thresholds that the rules' words name.
_BOUND: Final[Thresholds] = {"least": NOISE_FLOOR, "high": MODERATE_SHARE}

WAITING_RULES: Final[tuple[Rule[Window], ...]] = (
    rule("sync_bound", _sync_sites, _BOUND),
    rule("syncs_together", _syncs_together, {**_BOUND, "times": f"{_TOGETHER:g}"}),
    rule("gpu_idle", _gpu_idle, {"busy": BUSY_PCT / 100}),
    rule("launch_bound", _launch_bound, _LAUNCH_BOUND),
    rule("host_bound", _host_bound, {"least": OVERHEAD_MODERATE}),
)
