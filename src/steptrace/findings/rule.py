"""What a rule is, what it looks at in a trace, and the finding that becomes of what it yields; how findings are ranked.

A cost is an upper bound: what a perfect remedy could save, and no sum, since one instant can have several causes.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from msgspec import structs

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import ANSWER, PREDICTED_SYNCS, SEVERITIES, Finding, Severity, Source
from steptrace.documents.summary import TraceSummary
from steptrace.documents.variant import VariantResult
from steptrace.format import duration, setting
from steptrace.limits import HOST_BOUND, NOISE_FLOOR, SLOW_PROFILE

#: What a rule looks at: a `Comparison`, a `TraceSummary`, or the whole `Summary` of several ranks.
Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Match:
    """Where a rule's condition holds: what is special to this case.

    `advice` and `counter_check` replace the rule's own if given. `variant` is filled in by `per_variant`, and
    `cost_share` by whatever applies the rule, if the rule leaves it open.
    """

    severity: Severity
    claim: str
    evidence: tuple[str, ...]
    cost_ns_per_step: float | None = None
    source: Source | None = None
    advice: str | None = None
    counter_check: str | None = None
    variant: str | None = None
    cost_share: float | None = None


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """One rule: `find` yields a match for each place in a trace, or in a study, where its condition holds.

    Its words, and what else rules.toml says of it, are explained there.
    """

    name: str
    condition: str
    basis: str
    advice: str
    counter_check: str
    find: Callable[[Subject], Iterator[Match]]
    study: str | None = None
    gpu_work: bool = False


Thresholds = Mapping[str, float | int | str]

#: What rules.toml says of each rule.
WORDS: Final[Mapping[str, Mapping[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("rules.toml").read_text(encoding="utf-8")
)


def rule(name: str, find: Callable[[Subject], Iterator[Match]], thresholds: Thresholds | None = None) -> Rule[Subject]:
    """The rule with this name in rules.toml.

    Args:
        name: its name.
        find: its function.
        thresholds: values for the braces in its condition, basis and advice. A float is a share, written as a
            percentage.
    """
    values = {key: setting(value) if isinstance(value, float) else value for key, value in (thresholds or {}).items()}
    words = dict(WORDS[name])
    words |= {key: words[key].format(**values) for key in ("condition", "basis", "advice")}
    return Rule(name=name, find=find, **words)


def to_finding(rule: Rule[Any], match: Match) -> Finding:
    """The finding that a match of a rule is."""
    of_match = vars(match) | {"cost_ns_per_step": None if (cost := match.cost_ns_per_step) is None else round(cost)}
    of_match |= {key: of_match[key] or getattr(rule, key) for key in ("advice", "counter_check")}
    return Finding(rule=rule.name, **of_match, basis=rule.basis, study=rule.study, condition=rule.condition)


def of_slow_profile(item: Finding, slower: float | None) -> Finding:
    """The finding without its cost, and no more than an info, where that is of a profile far slower than the step.

    `slower` is the profiled over the unprofiled step time, None if unknown.
    """
    if slower is None or slower < SLOW_PROFILE or item.cost_ns_per_step is None:
        return item
    reason = f"in a profile that takes {fmt.significant(slower)} times as long as the step itself, so no cost is given"
    claim = f"{item.claim} ({reason})"
    return structs.replace(item, claim=claim, cost_ns_per_step=None, cost_share=None, severity="info")


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """A study's answer, then the findings by severity and cost.

    Of those of high severity the ones without a cost come first: errors, which nothing should be concluded before. So
    do predicted syncs among warnings.
    """
    return sorted(findings, key=_order)


def _order(item: Finding) -> tuple[float, ...]:
    unpriced = item.cost_ns_per_step is None and item.cost_share is None
    # A prediction is there only where no GPU has measured: what a CPU's step waits for says less of a GPU's.
    first = unpriced and (item.severity == "high" or item.rule == PREDICTED_SYNCS)
    costs = -(item.cost_ns_per_step or 0), -(item.cost_share or 0)
    return item.rule != ANSWER, SEVERITIES.index(item.severity), not first, *costs


def per_variant(check: Callable[[VariantResult], Iterator[Match]]) -> Callable[[Comparison], Iterator[Match]]:
    """Make a check of one variant a check of all variants of a study."""

    def find(study: Comparison) -> Iterator[Match]:
        for variant in study.variants:
            for match in check(variant):
                yield replace(match, variant=variant.name)

    return find


_BUSY: Final = ("compute", "exposed_memory", "exposed_comm")
#: Classes of the critical path on the GPU.
_GPU_CLASSES: Final = ("queue", "compute", "comm", "memory")


@dataclass(frozen=True)
class Window:
    """The input of a rule on one trace: its entry of summary.json, with all times per step.

    `step_ns` is the mean profiled step, or the length of a trace without steps, which counts as one step: its findings
    have a share, but no cost per step. Figures that were not measured are None, and trigger no rule.

    `parts` are the exclusive parts of the GPU's time (`compute`, `exposed_memory`, `exposed_comm`, `idle_sync`,
    `idle_loader`, `idle_host`, `idle_dependency`, `idle_between_kernels`, `idle_unknown`) in ns of a step, empty
    without a GPU.
    """

    entry: TraceSummary
    steps: int
    step_ns: float
    parts: Mapping[str, float]

    @property
    def per(self) -> str:
        """What figures are for, in words; a trace without steps is looked at as a whole."""
        return "per step" if self.steps else "in the whole trace"

    @property
    def idle_ns(self) -> float | None:
        """Idle time of the GPU in a step, None without a GPU."""
        return sum(ns for name, ns in self.parts.items() if name not in _BUSY) if self.parts else None

    def per_step(self, total: float) -> float:
        """What a figure over the whole trace comes to in a step."""
        return total / max(self.steps, 1)

    def share(self, ns: float) -> float:
        """A step's time as a share of the step; 0 for a trace without length."""
        return ns / self.step_ns if self.step_ns else 0.0

    @property
    def unprofiled_ns(self) -> float | None:
        """The length of an unprofiled step, on average where steps differ; None if unknown."""
        return self.entry.unprofiled_mean_ns if self.entry.step_kinds else self.entry.unprofiled_step_ns

    @property
    def slower(self) -> float | None:
        """The profiled over the unprofiled step time, of steps of one kind where they differ; None if unknown."""
        if self.entry.profiled_over_unprofiled is not None:
            return self.entry.profiled_over_unprofiled
        unprofiled_ns = self.entry.unprofiled_step_ns
        return self.step_ns / unprofiled_ns if unprofiled_ns and self.steps else None

    def without_profiler(self, idle_ns: float) -> tuple[float, float]:
        """Idle time of the GPU in an unprofiled step, and that step's length; as profiled without such a step.

        It is at most what that step leaves beside the GPU's work: the rest of the profiled idle time is the profiler's,
        which slows the host.
        """
        step_ns = self.unprofiled_ns if self.entry.unprofiled_alike_ns is None else self.entry.unprofiled_alike_ns
        if self.idle_ns is None or not self.steps or not step_ns or not step_ns < self.step_ns < SLOW_PROFILE * step_ns:
            return idle_ns, self.step_ns
        return min(idle_ns, max(step_ns - (self.step_ns - self.idle_ns), 0.0)), float(step_ns)

    def bounded(self, cost_ns: float | None, share: float | None) -> tuple[float | None, float | None]:
        """A cost and its share of the step, at most an unprofiled step and all of it: a profiled one may be longer."""
        most_ns = self.unprofiled_ns if self.steps else None
        if cost_ns is None or most_ns is None or cost_ns <= most_ns:
            return cost_ns, share
        return most_ns, 1.0

    @property
    def host_may_be_slowed(self) -> bool:
        """Whether Python stacks were recorded, which slows the host, and no unprofiled step says by how much."""
        return self.entry.program.stacks and self.entry.unprofiled_step_ns is None

    @property
    def waits_for_host(self) -> float:
        """The share of a step, an unprofiled one if known, in which the GPU is idle because nothing was launched."""
        idle_ns, step_ns = self.without_profiler(self.parts.get("idle_host", 0.0))
        return idle_ns / step_ns if step_ns else 0.0

    @property
    def host_bound(self) -> bool:
        """Whether that is half of the step or more."""
        return self.waits_for_host >= HOST_BOUND

    @property
    def gpu_on_path_ns(self) -> float | None:
        """GPU work on the critical path of a step that the host bounds: shorter GPU work saves no more.

        None where the host does not bound the step: the path knows no full queue, so that of a step that the GPU bounds
        can lie on the host, too.
        """
        path = self.entry.critical_path
        if path is None or not self.host_bound:
            return None
        on_gpu = [row.path_ns for row in path.classes if row.class_ in _GPU_CLASSES]
        return None if None in on_gpu else float(sum(ns for ns in on_gpu if ns is not None))

    def find(self, rule: Rule["Window"]) -> Iterator[Finding]:
        """A rule's findings that save something; their costs get their share, and are for one step where there are any.

        None on GPU work where the host bounds the step and Python stacks may be the reason: its cost is not known then.
        """
        if rule.gpu_work and self.host_bound and self.host_may_be_slowed:
            return
        for match in rule.find(self):
            match = self._on_path(match) if rule.gpu_work else match
            cost, share = match.cost_ns_per_step, match.cost_share
            if share is None and cost is not None:
                share = min(self.share(cost), 1.0)
            cost, share = self.bounded(cost, share)
            if share is None or share >= NOISE_FLOOR:
                yield to_finding(rule, replace(match, cost_ns_per_step=cost if self.steps else None, cost_share=share))

    def _on_path(self, match: Match) -> Match:
        """A match on GPU work with no more cost than the critical path holds of it."""
        most_ns = self.gpu_on_path_ns
        if most_ns is None or match.cost_ns_per_step is None or match.cost_ns_per_step <= most_ns:
            return match
        why = f"the host sets the step time: {duration(most_ns)} of GPU work is on the critical path"
        return replace(match, severity="info", cost_ns_per_step=most_ns, evidence=(*match.evidence, why))


def window_of(entry: TraceSummary) -> Window:
    """The window of one trace's entry in summary.json."""
    divided = entry.overview
    if divided is None:
        return Window(entry, 0, float(entry.window_ns), {})
    parts = divided.of_step if divided.kind == "gpu" else {}
    return Window(entry, divided.steps, divided.window_ns / (divided.steps or 1), parts)
