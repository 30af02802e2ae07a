"""What a rule on one trace looks at: its entry of summary.json, with all times for one step; what becomes of a finding.

A trace that marks no steps is looked at as a whole, as if it were one step; what is found there has a share, but no
cost per step. Only what was measured is there to be looked at: a missing figure is None, and fires no rule.

A rule's own ceiling is what its cause takes. Were all work of that class gone, a step may yet be hardly shorter, since
something else takes as long: then nothing done about the cause can save more. What is saved counts over all steps
(`saved_ns` of `critical_path`): without a wait the host runs ahead of the GPU, into the next step. Rules on a GPU that
waits for the host are not capped by a class: the same instant may be the host's on one path and a launch's latency on
another, so that either alone gone saves less than both.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from steptrace.documents.finding import Finding
from steptrace.documents.summary import TraceSummary
from steptrace.findings.model import A_STEP, WORDS, Rule, to_finding
from steptrace.format import duration
from steptrace.limits import NOISE_FLOOR

WHOLE: Final = "in the whole trace"

_BUSY: Final = ("compute", "exposed_memory", "exposed_comm")


@dataclass(frozen=True)
class Window:
    """One trace. `step_ns` is the mean profiled step, or the length of a trace without steps.

    `parts` are the exclusive parts of the GPU's time (`compute`, `exposed_memory`, `exposed_comm`, `idle_sync`,
    `idle_loader`, `idle_host`, `idle_dependency`, `idle_unknown`) in ns of a step, empty without a GPU.
    """

    entry: TraceSummary
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

    def find(self, rule: "Rule[Window]") -> Iterator[Finding]:
        """A rule's findings; costs get their share of the step, and are for one step only where there are steps."""
        for match in rule.find(self):
            cost, share = match.cost_ns_per_step, match.cost_share
            if share is None and cost is not None and self.step_ns:
                share = min(self.share(cost), 1.0)
            yield to_finding(rule, replace(match, cost_ns_per_step=cost if self.steps else None, cost_share=share))


def window_of(entry: TraceSummary) -> Window:
    """The window of one trace's entry in summary.json."""
    divided = entry.step_parts
    if divided is not None:
        steps = divided.steps
        parts_ns = divided.parts_ns if divided.kind == "gpu" else {}
        return Window(entry, steps, divided.window_ns / steps, {name: ns / steps for name, ns in parts_ns.items()})
    gpu, causes = entry.gpu, entry.idle.by_cause
    if not gpu.activities or gpu.span_ns is None or causes is None:
        return Window(entry, 0, float(entry.window_ns), {})
    busy = zip(_BUSY, (gpu.compute_ns, gpu.exposed_memory_ns, gpu.exposed_comm_ns), strict=True)
    parts = {name: float(ns) for name, ns in busy if ns is not None}
    return Window(entry, 0, float(gpu.span_ns), parts | {f"idle_{name}": float(ns) for name, ns in causes.items()})


def has_stacks(entry: TraceSummary) -> bool:
    """Whether Python stacks were recorded, which slows the host."""
    flame = entry.program.host_flame
    return flame is not None and any(box.kind == "frame" for box in flame.boxes)


#: The classes of the critical path, as said of one that is taken away; a rule's is its `path_class` in rules.toml.
_IN_WORDS: Final[Mapping[str, str]] = {
    "loader": "any wait for the data loader",
    "sync": "any wait for the GPU",
    "memory": "any copy or set of memory",
    "compute": "any compute",
    "comm": "any communication",
}


def path_saves(window: Window, rule: str) -> float | None:
    """What a step of all would be shorter by without the class that a rule is about; None where nothing says."""
    name = WORDS[rule].get("path_class")
    if rule == "input_bound" and window.entry.input.source == "section":
        return None  # the path knows PyTorch's loaders only
    path = window.entry.critical_path
    saved = [] if path is None else [row.saved_ns for row in path.classes if row.class_ == name]
    return float(saved[0]) if saved and saved[0] is not None else None


def cap_by_critical_path(finding: Finding, window: Window) -> Finding:
    """The finding with its ceiling at most what the step would be shorter by without its class, and why if less."""
    saves, share = path_saves(window, finding.rule), finding.cost_share
    if saves is None or share is None or saves >= share * window.step_ns:
        return finding
    without = _IN_WORDS[WORDS[finding.rule]["path_class"]]
    nothing = window.share(saves) < NOISE_FLOOR
    whole = "a step" if window.steps else "the whole trace"
    says = f"by its critical path {whole} would be {duration(saves)} shorter without {without}"
    return structs.replace(
        finding,
        severity="info" if nothing else finding.severity,
        claim=finding.claim + (f"; yet {whole} would hardly be shorter without {without} at all" if nothing else ""),
        cost_ns_per_step=None if finding.cost_ns_per_step is None else round(min(saves, finding.cost_ns_per_step)),
        cost_share=window.share(saves),
        evidence=(*finding.evidence, says),
    )
