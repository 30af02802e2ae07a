"""Rules on where a step's time goes: the loader, an idle GPU (syncs: see sync_cost.py; the rest: see trace/).

Shares are of the step they were measured in: trace figures of the profiled step, the loader's wait of the timed one.
A cost is what the cause takes at most; removing one cause may bring the next to light.
"""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import asdict

from steptrace.analysis import input as waiting
from steptrace.documents.comparison import Comparison, LoadingParts, VariantResult
from steptrace.findings.model import Match, Rule, rule
from steptrace.findings.variants import ProfiledStep, length_ms, per_variant, profiled_step
from steptrace.format import NS_PER_MS, duration
from steptrace.format import whole_percent as percent

#: From these shares of a step on, a cost is moderate or high (the TensorFlow Profiler's thresholds for input).
MODERATE_SHARE: Final = waiting.MODERATE_SHARE
HIGH_SHARE: Final = waiting.HIGH_SHARE
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


STEP_TIME_RULES: Final[tuple[Rule[Comparison], ...]] = (
    rule("input_bound", per_variant(_input_bound), {"least": MODERATE_SHARE}),
    rule("gpu_idle", per_variant(lambda variant: gpu_idle(profiled_step(variant))), {"busy": BUSY_PCT / 100}),
)
