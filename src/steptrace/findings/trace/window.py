"""What a rule on one trace looks at: its entry of summary.json, with all times for one step.

A trace that marks no steps is looked at as a whole, as if it were one step; what is found there has a share, but no
cost per step. Only what was measured is there to be looked at: a missing figure is None, and fires no rule.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from steptrace.findings.model import A_STEP, NS_PER_MS, Json, Match

WHOLE: Final = "in the whole trace"

_BUSY: Final = ("compute", "exposed_memory", "exposed_comm")
_PARTS: Final = ("compute", "exposed_comm", "exposed_memory", "idle")


@dataclass(frozen=True)
class Window:
    """One trace. `step_ns` is the mean profiled step, or the length of a trace without steps.

    `parts` are the exclusive parts of the GPU's time (`compute`, `exposed_memory`, `exposed_comm`, `idle_sync`,
    `idle_loader`, `idle_host`, `idle_dependency`, `idle_unknown`) in ns of a step, empty without a GPU.
    """

    entry: Json
    steps: int
    step_ns: float
    parts: Mapping[str, float]

    @property
    def per(self) -> str:
        """What figures are for, in words."""
        return A_STEP if self.steps else WHOLE

    @property
    def idle_ns(self) -> float | None:
        """Idle time of the GPU in a step, None without a GPU."""
        return sum(ns for name, ns in self.parts.items() if name not in _BUSY) if self.parts else None

    def each(self, total: float) -> float:
        """What a figure over the whole trace comes to in a step."""
        return total / max(self.steps, 1)

    def share(self, ns: float) -> float:
        """A step's time as a share of the step; 0 for a trace without length."""
        return ns / self.step_ns if self.step_ns else 0.0


def window_of(entry: Json) -> Window:
    """The window of one trace's entry in summary.json."""
    divided = entry.get("step_parts")
    if divided:
        steps = divided["steps"]
        parts = divided["parts_ns"] if divided["kind"] == "gpu" else {}
        return Window(entry, steps, divided["window_ns"] / steps, {name: ns / steps for name, ns in parts.items()})
    gpu, causes = entry.get("gpu") or {}, (entry.get("idle") or {}).get("by_cause")
    if not gpu.get("activities") or causes is None:
        return Window(entry, 0, float(entry.get("window_ns") or 0), {})
    parts = {name: float(gpu[f"{name}_ns"]) for name in _BUSY}
    return Window(entry, 0, float(gpu["span_ns"]), parts | {f"idle_{name}": float(ns) for name, ns in causes.items()})


def on_trace(check: Callable[[Window], Iterator[Match]]) -> Callable[[Json], Iterator[Match]]:
    """Make a check of a window a check of a trace's entry; costs are for one step, and get their share of it."""

    def find(entry: Json) -> Iterator[Match]:
        window = window_of(entry)
        for match in check(window):
            cost = match.cost_ns_per_step
            share = match.cost_share
            if share is None and cost is not None and window.step_ns:
                share = min(window.share(cost), 1.0)
            yield replace(match, cost_ns_per_step=cost if window.steps else None, cost_share=share)

    return find


def as_variant(window: Window) -> dict[str, Any]:
    """The trace in the form of a comparison's variant, for the rules that look at both."""
    entry = window.entry
    syncs, foretold = entry.get("syncs") or {}, entry.get("whatif") or {}
    figures = ("count", "blocked_ns", "exposed_idle_ns", "ceiling_ns", "saved_ns")
    exclusive = {name: window.parts[name] for name in _BUSY} | {"idle": window.idle_ns or 0.0} if window.parts else {}
    return {
        "breakdown_ms": {name: exclusive[name] / NS_PER_MS for name in _PARTS} if exclusive else None,
        "gpu_busy_pct": entry.get("gpu_busy_pct"),
        "sync_sites": [
            dict(site) | {f"{name}_per_step": _each(window, site.get(name)) for name in figures}
            for site in syncs.get("sites") or ()
        ],
        "sync_prices": {f"all_{name}_ns_per_step": _each(window, foretold.get(f"all_{name}_ns")) for name in _PRICES},
        "per": window.per,
    }


_PRICES: Final = ("saved", "ceiling")


def _each(window: Window, total: float | None) -> float | None:
    return None if total is None else window.each(total)
