"""Rules on where a step's time goes: the loader, an idle GPU, synchronisations (the rest: see trace/).

Shares are of the step they were measured in: trace figures of the profiled step, the loader's wait of the timed one.
A cost is what the cause takes at most; removing one cause may bring the next to light.

What one sync site's removal saves is predicted by replay of the trace (`saved_ns_per_step`); where the replay does not
fit it is taken to be the exposed idle, though not more than the host was blocked.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import asdict

from steptrace.analysis.input import MODERATE_SHARE
from steptrace.documents.comparison import Comparison, PredictedSite, SyncSiteOfVariant, VariantResult
from steptrace.documents.comparison.syncs import BATCH_COPY, is_batch_copy
from steptrace.documents.comparison.window import LoadingParts
from steptrace.documents.finding import Source
from steptrace.findings.model import Match, ProfiledStep, Rule, Thresholds, length_ms, per_variant, profiled_step, rule
from steptrace.findings.replacements import counter_check, replacement
from steptrace.format import NS_PER_MS, duration, plural
from steptrace.format import whole_percent as percent

#: Busy share of a step below which a GPU counts as idle (Nsight Systems' gpu_time_util, PyTorch's TensorBoard plugin).
BUSY_PCT: Final = 50.0


def _input_bound(variant: VariantResult) -> Iterator[Match]:
    found = variant.input
    if found is None or found.share is None or found.share < MODERATE_SHARE:
        return
    if found.step_ms is None or found.wait_ms is None or found.counted_ms is None:
        return
    share, part = found.share, found.idle_part
    wait_ns, step_ns = found.wait_ms * NS_PER_MS, found.step_ms * NS_PER_MS
    spent = f"{duration(wait_ns)} of the {duration(step_ns)} of a mean step are spent in the loader's __next__"
    evidence = [f"{spent}; these, and the share, are medians of the runs"]
    if part is not None:
        evidence.append(f"the GPU is idle for {percent(part)} of that time")
    yield Match(
        severity="high" if found.verdict == "high" else "warning",
        claim=f"{percent(share)} of the step is waiting for the data loader"
        + (", the GPU idle meanwhile" if part is not None else ""),
        evidence=(*evidence, *_longest_part(found.breakdown_ms)),
        cost_ns_per_step=found.counted_ms * NS_PER_MS,
        cost_share=share,
    )


def _longest_part(parts: LoadingParts | None) -> list[str]:
    """Which part of loading a batch takes longest, if a pass timed them."""
    known = {} if parts is None else {part: ms for part, ms in asdict(parts).items() if ms is not None}
    if not known:
        return []
    part = max(known, key=lambda name: known[name])
    return [f"{percent(known[part] / (sum(known.values()) or 1))} of the work of loading a batch is {part}"]


def gpu_idle(step: ProfiledStep) -> Iterator[Match]:
    """Where the GPU is idle for most of a profiled step."""
    parts, busy, nvml = step.breakdown, step.gpu_busy_pct, step.nvml_util_pct
    if parts is None or busy is None or busy >= BUSY_PCT:
        return
    yield Match(
        severity="warning",
        claim=f"the GPU is busy for {busy:.0f} % of the step",
        evidence=(
            f"idle {parts.idle:.3g} ms of {length_ms(parts):.3g} ms {step.per}",
            *([f"NVML's utilisation of the unprofiled run is {nvml:.0f} %"] if nvml is not None else []),
        ),
        cost_ns_per_step=parts.idle * NS_PER_MS,
    )


#: A site below this share of a step is left to the table: it is within the default noise floor.
SYNC_SHARE: Final = 0.01
#: Together they must save so many times what they save one by one.
_TOGETHER: Final = 1.5
#: A prediction lists so many sites; the page's table has all.
_MOST_SITES: Final = 6


def _saving(site: SyncSiteOfVariant) -> tuple[float, float]:
    """What a step saves without the site, as far as is known, and at most; profiled ns."""
    exposed, ceiling = site.exposed_idle_ns_per_step or 0, site.ceiling_ns_per_step
    if ceiling is None:
        ceiling = min(exposed, site.blocked_ns_per_step or 0)
    return (min(exposed, ceiling) if site.saved_ns_per_step is None else site.saved_ns_per_step), ceiling


def sync_sites(step: ProfiledStep) -> Iterator[Match]:
    """The sync sites of a step that cost time by themselves."""
    step_ns, per = step.step_ns, step.per
    for site in step.sites:
        saved_ns, ceiling_ns = _saving(site)
        if step_ns is None or saved_ns < SYNC_SHARE * step_ns:
            continue
        what = site.op or site.kind or "a synchronisation"
        idle_ns = site.exposed_idle_ns_per_step or 0
        yield Match(
            severity="high" if saved_ns >= MODERATE_SHARE * step_ns else "warning",
            claim=f"{place(site)} makes the host wait for the GPU ({what})"
            + (f", and the GPU then waits for the host: {duration(idle_ns)} idle {per}" if idle_ns else ""),
            evidence=(
                f"{plural(site.count_per_step or 0, 'sync')} {per}",
                f"host blocked {duration(site.blocked_ns_per_step or 0)} {per}",
                f"GPU idle {duration(idle_ns)} {per} from the sync to the next GPU work, of {duration(step_ns)}",
                *_replay(site, ceiling_ns, per),
                *([f"code: {site.code}"] if site.code else []),
            ),
            cost_ns_per_step=ceiling_ns,
            source=_source(site),
            advice=replacement(site),
            counter_check=counter_check(site),
        )


def _replay(site: SyncSiteOfVariant, ceiling_ns: float, per: str) -> list[str]:
    if site.saved_ns_per_step is None:
        return []
    return [f"a replay without it saves {duration(site.saved_ns_per_step)} {per}, at most {duration(ceiling_ns)}"]


def place(site: PredictedSite) -> str:
    """Where a site is: its line, or its label where no line is known."""
    if _source(site) is not None:
        return f"{site.file}:{site.line}"
    if is_batch_copy(site):
        return BATCH_COPY
    return f"a place labelled '{site.label}'" if site.label else "a place without a source line"


def _source(site: PredictedSite) -> Source | None:
    return None if site.file is None or site.line is None else Source(file=site.file, line=site.line)


def by_blocked_time(sites: Iterable[SyncSiteOfVariant]) -> list[SyncSiteOfVariant]:
    """The sites, the one that blocks the host longest first."""
    return sorted(sites, key=lambda site: -(site.blocked_ns_per_step or 0))


def syncs_together(step: ProfiledStep) -> Iterator[Match]:
    """Whether a step's syncs cost time only all together."""
    sites, saved_ns, step_ns, per = step.sites, step.saved_ns, step.step_ns, step.per
    if saved_ns is None or step_ns is None or len(sites) < 2 or saved_ns < SYNC_SHARE * step_ns:
        return
    alone_ns = sum(site.saved_ns_per_step or 0 for site in sites)
    if saved_ns < _TOGETHER * alone_ns:
        return
    longest = by_blocked_time(sites)[:3]
    yield Match(
        severity="high" if saved_ns >= MODERATE_SHARE * step_ns else "warning",
        claim=f"{len(sites)} places make the host wait one after the other: without all of them {duration(saved_ns)} "
        f"{per} would be saved, without one alone the wait only moves to the next",
        evidence=(
            f"a replay without any sync saves {duration(saved_ns)} of {duration(step_ns)} {per}",
            f"replays without one site each save {duration(alone_ns)} in all",
            *(f"{place(s)}: host blocked {duration(s.blocked_ns_per_step or 0)} {per}" for s in longest),
        ),
        cost_ns_per_step=step.ceiling_ns,
        source=_source(longest[0]),
    )


def predicted_syncs(variant: VariantResult) -> Iterator[Match]:
    """Syncs that a GPU would see, where none has looked yet. What they cost only a GPU can tell."""
    count, sites = variant.syncs.predicted_per_step, variant.predicted_sites
    if variant.syncs.measured_per_step is not None or not count or not sites:
        return
    often = sorted(sites, key=lambda site: -(site.count_per_step or 0))
    more = [f"and {len(often) - _MOST_SITES} places more"] if len(often) > _MOST_SITES else []
    yield Match(
        severity="warning",
        claim=f"on a GPU the host would wait {count:g} {'time' if count == 1 else 'times'} a step, by prediction; "
        f"first at {place(sites[0])}",
        evidence=(*map(_predicted, often[:_MOST_SITES]), *more),
        source=_source(sites[0]),
        advice=replacement(sites[0]),
        counter_check=counter_check(sites[0]),
    )


def _predicted(site: PredictedSite) -> str:
    code = f": `{site.code}`" if site.code else ""
    backward = ", in its backward pass" if site.phase == "backward" else ""
    kind = (site.kind or "sync").replace("_", " ")
    return f"{place(site)}{code}, {site.count_per_step or 0:g} x {kind}{backward}"


#: The thresholds that the rules' words name.
BOUND: Final[Thresholds] = {"least": SYNC_SHARE, "high": MODERATE_SHARE}
TOGETHER: Final[Thresholds] = {**BOUND, "times": f"{_TOGETHER:g}"}

STEP_TIME_RULES: Final[tuple[Rule[Comparison], ...]] = (
    rule("sync_bound", per_variant(lambda variant: sync_sites(profiled_step(variant))), BOUND),
    rule("syncs_together", per_variant(lambda variant: syncs_together(profiled_step(variant))), TOGETHER),
    rule("predicted_syncs", per_variant(predicted_syncs)),
    rule("input_bound", per_variant(_input_bound), {"least": MODERATE_SHARE}),
    rule("gpu_idle", per_variant(lambda variant: gpu_idle(profiled_step(variant))), {"busy": BUSY_PCT / 100}),
)
