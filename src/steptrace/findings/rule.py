"""The type of a rule of findings. One module declares a rule's condition, thresholds, figures and words.

Each module of `findings.rules` declares one rule as `RULE`. A rule yields a `Match` wherever its condition holds: a
severity, a cost, and the figures of this case as a struct. The rule's `words` make sentences of these figures and of
nothing else, so that whoever reads a finding from JSON can make them again (`registry.words_of`).

A cost is an upper bound: it says what a perfect remedy could save. Costs do not add up, since one instant can have
several causes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, get_args

import msgspec

from steptrace import format as fmt
from steptrace.documents.base import Document
from steptrace.documents.base import field as meaning
from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import ANSWER, PREDICTED_SYNCS, SEVERITIES, Finding, Severity, Source
from steptrace.documents.summary import CUDA, Summary
from steptrace.documents.variant import VariantResult
from steptrace.findings.window import Window
from steptrace.limits import SLOW_PROFILE
from steptrace.words.finding import claim_of_slow_profile

#: What a rule is about. Rules come in this order, and those of one topic by name, in the docs and in lists of findings
#: with the same severity and cost.
Topic = Literal["answer", "results", "data", "waiting", "compute", "communication", "memory", "method"]
TOPICS: Final[tuple[Topic, ...]] = get_args(Topic)


class BaseFigures(Document, frozen=True, kw_only=True):
    """The facts of one finding, as its `figures` in JSON hold them. Each rule has a struct of its own.

    A field's unit is the end of its name (`_ns`, `_bytes`, ...); a share is a fraction of 1.
    """


class TraceFigures(BaseFigures, frozen=True, kw_only=True):
    """The facts of a finding on a trace. Times and counts are means over the profiled steps, unless a field says more.

    A trace without steps is looked at as a whole: then they are sums over the whole trace.
    """

    steps: Annotated[int, meaning("Profiled steps; 0: the trace marks none, and figures are for the whole of it.")]
    step_ns: Annotated[float, meaning("Length of a profiled step, or of a trace without steps.")]
    device_module: Annotated[str, meaning("PyTorch's module of the device, as `TraceSummary.device_module`.")] = CUDA

    @property
    def on_cuda(self) -> bool:
        """Whether features that PyTorch has for CUDA alone can be advised; ROCm's devices are `torch.cuda` as well."""
        return self.device_module == CUDA

    @property
    def per(self) -> str:
        """What times and counts are for, in words."""
        return per_in_words(self.steps)


def per_in_words(steps: int) -> str:
    """What times and counts are for: a step, or the whole of a trace that marks no steps."""
    return "per step" if steps else "in the whole trace"


FiguresT = TypeVar("FiguresT", bound=BaseFigures)
#: What a rule looks at: a `Window` of a trace, a `Summary` of several ranks, or a `Comparison`.
_Subject = TypeVar("_Subject")


def advise(to_do: str, *more: str) -> tuple[str, ...]:
    """An advice: what to do in one sentence, then further facts."""
    return (to_do, *more)


@dataclass(frozen=True)
class Words:
    """The sentences of one finding.

    Attributes:
        claim: what is the case. It begins with a small letter and has no full stop, so that it can stand behind a
            variant's name; a name at its beginning is in backticks.
        evidence: the figures behind it.
        advice: what to do in one sentence, then further facts; empty if the rule's advice needs nothing
            more.
        counter_check: what would show that the claim is wrong; None if the rule's needs nothing more.
    """

    claim: str
    evidence: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    counter_check: str | None = None


@dataclass(frozen=True, kw_only=True)
class Match(Generic[FiguresT]):
    """A place where a rule's condition holds, with the facts of this case.

    Attributes:
        severity: how much it matters.
        figures: its facts.
        cost_ns_per_step: what a perfect remedy saves at most; None if that is not known.
        cost_share: the same as a share of the step. Whatever applies the rule fills it in if it is left open.
        source: line of the program, or rank.
        variant: of a study's rule, the variant that it is about; None for the study.
    """

    severity: Severity
    figures: FiguresT
    cost_ns_per_step: float | None = None
    cost_share: float | None = None
    source: Source | None = None
    variant: str | None = None


@dataclass(frozen=True)
class Threshold:
    """A limit of a condition, with its source.

    Attributes:
        value: the limit.
        source: the tool or paper that gives it; "ours" if it is our own.
        unit: `share` of 1, `ns`, `B`, or empty for a number.
    """

    value: float
    source: str
    unit: Literal["share", "ns", "B", ""] = "share"

    @property
    def text(self) -> str:
        """The limit in words: "5 %", "30 µs", "1.5"."""
        by_unit = {"share": fmt.setting, "ns": fmt.duration, "B": fmt.size_bytes, "": fmt.count}
        return by_unit[self.unit](self.value)


@dataclass(frozen=True, kw_only=True)
class Rule(Generic[FiguresT]):
    """One rule.

    Attributes:
        name: its name, which is that of its module.
        topic: what it is about.
        figures: the struct of its figures.
        words: makes a finding's sentences of its figures.
        condition: when it fires; names of thresholds in braces stand for their values.
        thresholds: the limits in the condition, by name.
        source: where a condition without thresholds comes from, or what their sources leave open.
        advice: what to do in general, in one sentence, then further facts.
        counter_check: what would show that the claim is wrong.
        in_trace: finds it in one trace.
        in_ranks: finds it in the traces of several ranks.
        in_study: finds it in a comparison.
        study: the study that demonstrates it.
        gpu_work: whether its cost is GPU work. If the host bounds the step, such a cost is at most the GPU's part of
            the critical path. If Python stacks may be why the host bounds the step, the rule is silent.
        for_several_lines: whether its advice is about several lines; `source` is then the first one to look at.
        told_apart_by: the figures that tell its findings at one line, or without a line, apart. A dot leads into a
            struct.
    """

    name: str
    topic: Topic
    figures: type[FiguresT]
    words: Callable[[FiguresT], Words]
    condition: str
    advice: tuple[str, ...]
    counter_check: str
    thresholds: Mapping[str, Threshold] = field(default_factory=lambda: MappingProxyType({}))
    source: str = ""
    in_trace: Callable[[Window], Iterator[Match[FiguresT]]] | None = None
    in_ranks: Callable[[Summary], Iterator[Match[FiguresT]]] | None = None
    in_study: Callable[[Comparison], Iterator[Match[FiguresT]]] | None = None
    study: str | None = None
    gpu_work: bool = False
    for_several_lines: bool = False
    told_apart_by: tuple[str, ...] = ()

    @property
    def looks_at(self) -> tuple[str, ...]:
        """The things that it looks at: `trace`, `ranks`, `study`."""
        found = (("trace", self.in_trace), ("ranks", self.in_ranks), ("study", self.in_study))
        return tuple(name for name, find in found if find is not None)

    @property
    def condition_text(self) -> str:
        """The condition with the values of its thresholds."""
        return self.condition.format(**{name: limit.text for name, limit in self.thresholds.items()})

    @property
    def basis(self) -> str:
        """The sources of the condition's thresholds; thresholds of one source are listed together."""
        by_source: dict[str, list[str]] = {}
        for limit in self.thresholds.values():
            by_source.setdefault(limit.source, []).append(limit.text)
        parts = [f"{fmt.enumeration(list(dict.fromkeys(limits)))}: {source}" for source, limits in by_source.items()]
        return "; ".join([*parts, *filter(None, [self.source])])

    def finding(self, match: Match[FiguresT]) -> Finding:
        """The finding that a match makes."""
        words = self.words(match.figures)
        advice = words.advice or self.advice
        return Finding(
            rule=self.name,
            severity=match.severity,
            claim=words.claim,
            cost_ns_per_step=None if match.cost_ns_per_step is None else round(match.cost_ns_per_step),
            source=match.source,
            evidence=words.evidence,
            advice=" ".join(advice),
            advice_parts=advice,
            counter_check=words.counter_check or self.counter_check,
            variant=match.variant,
            cost_share=match.cost_share,
            basis=self.basis,
            study=self.study,
            condition=self.condition_text,
            figures=msgspec.to_builtins(match.figures),
        )


def per_variant(
    check: Callable[[VariantResult], Iterator[Match[FiguresT]]],
) -> Callable[[Comparison], Iterator[Match[FiguresT]]]:
    """Turn a check of one variant into a check of all variants of a study."""

    def find(study: Comparison) -> Iterator[Match[FiguresT]]:
        for variant in study.variants:
            for match in check(variant):
                yield replace(match, variant=variant.name)

    return find


def of_slow_profile(item: Finding, slower: float | None) -> Finding:
    """The finding without its cost, and no more than an info, if the profile is far slower than the step itself.

    Args:
        item: a finding on a profiled trace.
        slower: the profiled over the unprofiled step time; None if unknown.
    """
    if slower is None or slower < SLOW_PROFILE or item.cost_ns_per_step is None:
        return item
    return msgspec.structs.replace(
        item,
        claim=claim_of_slow_profile(item.claim, slower),
        profile_slower=slower,
        cost_ns_per_step=None,
        cost_share=None,
        severity="info",
    )


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """A study's answer, then the findings by severity and cost.

    Findings of high severity without a cost come first: they are errors, which must be mended before anything is
    concluded. Predicted syncs come first among warnings.
    """
    return sorted(findings, key=_order)


def _order(item: Finding) -> tuple[float, ...]:
    unpriced = item.cost_ns_per_step is None and item.cost_share is None
    # There is a prediction only if no GPU has measured. It says more about a GPU's step than waits of a CPU's step do.
    first = unpriced and (item.severity == "high" or item.rule == PREDICTED_SYNCS)
    costs = -(item.cost_ns_per_step or 0), -(item.cost_share or 0)
    return item.rule != ANSWER, SEVERITIES.index(item.severity), not first, *costs


#: Any rule, whatever its figures.
AnyRule = Rule[Any]
