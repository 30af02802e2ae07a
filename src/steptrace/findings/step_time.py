"""Rules on where a step's time goes: the loader, an idle GPU (syncs: see sync_cost.py; the rest: see trace/).

Shares are of the step they were measured in: trace figures of the profiled step, the loader's wait of the timed one.
A cost is what the cause takes at most; removing one cause may bring the next to light.
"""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import asdict

from steptrace.analysis.input import measure as waiting
from steptrace.documents.comparison import Comparison, LoadingParts, VariantResult
from steptrace.findings.model import Match, Rule
from steptrace.findings.variants import ProfiledStep, length_ms, per_variant, profiled_step
from steptrace.format import NS_PER_MS, duration
from steptrace.format import whole_percent as percent

#: From these shares of a step on, a cost is moderate or high (the TensorFlow Profiler's thresholds for input).
MODERATE_SHARE: Final = waiting.MODERATE_SHARE
HIGH_SHARE: Final = waiting.HIGH_SHARE
#: Busy share of a step below which a GPU counts as idle (Nsight Systems' gpu_time_util, PyTorch's TensorBoard plugin).
BUSY_PCT: Final = 50.0
#: What to do about a loader that is waited for.
MORE_WORKERS: Final = (
    "Give the loader more workers (`DataLoader(num_workers=..., persistent_workers=True)`), or take work off them: "
    "decode beforehand, make a sample cheaper, or decode on the GPU."
)
#: The rules that say why a GPU is idle.
IDLE_CAUSES: Final = ("sync_bound", "syncs_together", "input_bound", "launch_bound", "host_bound")


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
    Rule(
        name="input_bound",
        condition=f"waiting for the loader takes at least {percent(MODERATE_SHARE)} of the step; where there is a GPU, "
        "only the time in which it is idle counts",
        basis="the TensorFlow Profiler calls 5 % moderate and 20 % high",
        advice=f"{MORE_WORKERS} In a study's configuration: data.num_workers; scale.input_steps says which part takes "
        "long.",
        counter_check="Run a variant on batches kept in memory (data.pool=4): its step is what a perfect loader would "
        "give. Workers gain nothing where there are no processors for them.",
        find=per_variant(_input_bound),
        study="input_pipeline",
    ),
    Rule(
        name="gpu_idle",
        condition=f"the GPU is busy for less than {BUSY_PCT:.0f} % of the step",
        basis="Nsight Systems (gpu_time_util) and PyTorch's TensorBoard plugin flag less than 50 %",
        advice="Look at the syncs, the loader and the launches first; then try a larger batch.",
        counter_check="Compare with the unprofiled step time: the profiler slows the host, and so makes a GPU idle.",
        find=per_variant(lambda variant: gpu_idle(profiled_step(variant))),
        explained_by=IDLE_CAUSES,
    ),
)
