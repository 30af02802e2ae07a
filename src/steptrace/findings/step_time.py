"""Rules on where a step's time goes: the loader, an idle GPU (syncs: see sync_cost.py; the rest: see trace/).

Shares are of the step they were measured in: trace figures of the profiled step, the loader's wait of the timed one.
A cost is what the cause takes at most; removing one cause may bring the next to light.
"""

from collections.abc import Iterator
from typing import Final

from steptrace.findings.model import A_STEP, NS_PER_MS, Json, Match, Rule, in_ms
from steptrace.findings.variants import per_variant, step_ns_of, traced_step_ns

#: From these shares of a step on, a cost is moderate or high (the TensorFlow Profiler's thresholds for input).
MODERATE_SHARE: Final = 0.05
HIGH_SHARE: Final = 0.20
#: Busy share of a step below which a GPU counts as idle (Nsight Systems' gpu_time_util, PyTorch's TensorBoard plugin).
BUSY_PCT: Final = 50.0
#: The rules that say why a GPU is idle.
IDLE_CAUSES: Final = ("sync_bound", "syncs_together", "input_bound", "launch_bound", "host_bound")


def _input_bound(variant: Json) -> Iterator[Match]:
    step_ns, share = step_ns_of(variant), variant.get("loader_wait_pct")
    if step_ns is None or share is None:
        return
    waited_ns = share / 100 * step_ns
    parts = variant.get("breakdown_ms")
    traced_ns = traced_step_ns(variant)
    if parts and traced_ns:
        # Waiting while the GPU still works costs nothing: at most its idle time can be the loader's.
        waited_ns = min(waited_ns, parts["idle"] * NS_PER_MS / traced_ns * step_ns)
    if waited_ns < MODERATE_SHARE * step_ns:
        return
    yield Match(
        severity="high" if waited_ns >= HIGH_SHARE * step_ns else "warning",
        claim=f"up to {waited_ns / step_ns:.0%} of the step is waiting for the data loader",
        evidence=(
            f"{share:.0f} % of the timed steps' time is spent in the loader's __next__",
            f"{in_ms(waited_ns)} of {in_ms(step_ns)} a step"
            + (" at most, the GPU being busy for the rest" if parts else ""),
        ),
        cost_ns_per_step=waited_ns,
        cost_share=waited_ns / step_ns,
    )


def gpu_idle(variant: Json) -> Iterator[Match]:
    """Where the GPU is idle for most of a variant's profiled step."""
    parts, busy = variant.get("breakdown_ms"), variant.get("gpu_busy_pct")
    if not parts or busy is None or busy >= BUSY_PCT:
        return
    nvml = variant.get("nvml_util_pct")
    yield Match(
        severity="warning",
        claim=f"the GPU is busy for {busy:.0f} % of the step",
        evidence=(
            f"idle {parts['idle']:.3g} ms of {sum(parts.values()):.3g} ms {variant.get('per', A_STEP)}",
            *([f"NVML's utilisation of the unprofiled run is {nvml:.0f} %"] if nvml is not None else []),
        ),
        cost_ns_per_step=parts["idle"] * NS_PER_MS,
    )


STEP_TIME_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        name="input_bound",
        condition=f"waiting for the loader with the GPU idle takes at least {MODERATE_SHARE:.0%} of the step",
        basis="the TensorFlow Profiler calls 5 % moderate and 20 % high",
        advice="Raise data.num_workers or prefetch_factor, make a sample cheaper, or move decoding to the GPU.",
        counter_check="Run a variant on one batch kept in memory: its step is what a perfect loader would give.",
        find=per_variant(_input_bound),
        study="input_pipeline",
    ),
    Rule(
        name="gpu_idle",
        condition=f"the GPU is busy for less than {BUSY_PCT:.0f} % of the step",
        basis="Nsight Systems (gpu_time_util) and PyTorch's TensorBoard plugin flag less than 50 %",
        advice="Look at the syncs, the loader and the launches first; then try a larger batch.",
        counter_check="Compare with the unprofiled step time: the profiler slows the host, and so makes a GPU idle.",
        find=per_variant(gpu_idle),
        explained_by=IDLE_CAUSES,
    ),
)
