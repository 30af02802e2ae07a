"""Rules on a GPU that waits: for syncs, for the host's launches, for whatever else."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from steptrace.findings.model import Match, Rule, duration, number, percent
from steptrace.findings.step_time import STEP_TIME_RULES, gpu_idle
from steptrace.findings.sync_cost import SYNC_RULES, sync_sites, syncs_together
from steptrace.findings.trace.window import Window, as_variant, on_trace

#: Kernels shorter than this can end before the host has launched the next: a launch costs it 3-10 microseconds.
SHORT_KERNEL_NS: Final = 10_000.0
#: A launch with all that leads to it, operator and Python; a host that takes longer on average does something else.
LAUNCH_NS: Final = 250_000.0
#: Shares of a step in which the GPU waits for the host: moderate and high for the TensorFlow Profiler.
HOST_MODERATE, HOST_HIGH = 0.03, 0.15

_ON_VARIANTS: Final = {rule.name: rule for rule in (*SYNC_RULES, *STEP_TIME_RULES)}


def _waiting_for_host(window: Window) -> tuple[float, float, bool] | None:
    """GPU idle time in a step for want of a launch, the median of a launch's work, and whether launches are to blame.

    None below a moderate share. The median, since a few long kernels (collectives above all) do not help the many short
    ones around them.
    """
    idle_ns, launches = window.parts.get("idle_host"), window.entry.get("launches") or {}
    times = launches.get("device_ns")
    if idle_ns is None or not times or window.share(idle_ns) < HOST_MODERATE:
        return None
    each_ns = idle_ns / max(window.each(launches["count"]), 1)
    return idle_ns, times["median"], times["median"] < SHORT_KERNEL_NS and each_ns < LAUNCH_NS


def _launch_bound(window: Window) -> Iterator[Match]:
    found = _waiting_for_host(window)
    if found is None or not found[2]:
        return
    idle_ns, kernel_ns, _ = found
    launches = window.entry["launches"]
    kernels = window.entry.get("kernels_per_step") or window.each(launches["activities"])
    yield Match(
        severity="warning" if window.share(idle_ns) >= HOST_HIGH else "info",
        claim=f"the GPU waits for launches: of {number(kernels)} kernels and copies {window.per} half take at most "
        f"{kernel_ns / 1e3:.1f} µs, and end before the host has launched the next",
        evidence=(
            f"GPU idle {duration(idle_ns)} of {duration(window.step_ns)} {window.per} because nothing was launched",
            f"{launches['short_kernels']} of {launches['count']} launches took longer than their work took the GPU",
            *_dearest_endings(window),
        ),
        cost_ns_per_step=idle_ns,
    )


def _host_bound(window: Window) -> Iterator[Match]:
    found = _waiting_for_host(window)
    if found is None or found[2]:
        return
    idle_ns, kernel_ns, _ = found
    count = window.each(window.entry["launches"]["count"])
    yield Match(
        severity="warning" if window.share(idle_ns) >= HOST_HIGH else "info",
        claim=f"the GPU waits for the host, which does something else than launching: {duration(idle_ns)} {window.per}",
        evidence=(
            f"GPU idle {duration(idle_ns)} of {duration(window.step_ns)} {window.per} because nothing was launched",
            f"{number(count)} launches {window.per}, half of them of {duration(kernel_ns)} of GPU work or more",
            *_dearest_endings(window),
        ),
        cost_ns_per_step=idle_ns,
    )


def _dearest_endings(window: Window) -> list[str]:
    """Which operators' launches the GPU waited for longest."""
    endings = [row for row in (window.entry.get("idle") or {}).get("ended_by") or () if row.get("cause") == "host"]
    return [
        f"{duration(window.each(row['idle_ns']))} {window.per} until the launches of {row['op']}"
        + (f" in {row['label']}" if row.get("label") else "")
        for row in endings[:3]
        if row.get("op")
    ]


WAITING_RULES: Final[tuple[Rule, ...]] = (
    replace(_ON_VARIANTS["sync_bound"], find=on_trace(lambda window: sync_sites(as_variant(window)))),
    replace(_ON_VARIANTS["syncs_together"], find=on_trace(lambda window: syncs_together(as_variant(window)))),
    replace(_ON_VARIANTS["gpu_idle"], find=on_trace(lambda window: gpu_idle(as_variant(window)))),
    Rule(
        name="launch_bound",
        condition=f"the GPU is idle for want of a launch for at least {percent(HOST_MODERATE)} of the step, and half "
        f"of its kernels and copies take less than {SHORT_KERNEL_NS / 1e3:.0f} µs; the idle time is less than "
        f"{LAUNCH_NS / 1e3:.0f} µs a launch",
        basis="the TensorFlow Profiler calls 3 % of kernel launch moderate and 15 % high; 10 and 250 µs are "
        "ours: a launch costs the host 3-10 µs, with operator, Python and profiler some tens",
        advice="Launch less: torch.compile, a foreach or fused optimizer, CUDA graphs; or a larger batch, which makes "
        "each kernel longer.",
        counter_check="Double the batch: a launch-bound step hardly gets longer. The profiler slows each launch, so "
        "look at the unprofiled step too.",
        find=on_trace(_launch_bound),
        study="giou",
    ),
    Rule(
        name="host_bound",
        condition=f"the GPU is idle for want of a launch for at least {percent(HOST_MODERATE)} of the step, though "
        f"half of its kernels and copies take {SHORT_KERNEL_NS / 1e3:.0f} µs or more, or it is "
        f"{LAUNCH_NS / 1e3:.0f} µs a launch or more",
        basis="the TensorFlow Profiler calls 3 % of other host time moderate and 15 % high; 10 and 250 µs are ours",
        advice="Find in the gaps named here what the host does before it launches: Python code, logging, work on the "
        "CPU. Move it to another thread or out of the step.",
        counter_check="Profile without stacks and shapes: gaps that go away were the profiler's.",
        find=on_trace(_host_bound),
    ),
)
