"""What a page leads with: the findings to begin with, all with their evidence, and a badge where times are no GPU's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import ANSWER, PREDICTED_SYNCS, SEVERITIES, Finding
from steptrace.documents.run import is_simulated
from steptrace.findings.estimated import estimated_gpus, leads
from steptrace.findings.recommended import ABOUT_THE_METHOD
from steptrace.findings.registry import claim_at_start, with_present_words
from steptrace.format import duration_ns, enumeration
from steptrace.report.page.markup import Html, place, render
from steptrace.words.finding import gain_text

#: The findings of this number of rules are open; the others are folded.
_MOST_SHOWN: Final = 3
#: The most findings that are shown in full under one rule and advice; of the others only the variants are named.
_MOST_SHOWN_IN_FULL: Final = 6
#: Rules whose findings never have a cost.
_UNPRICED: Final = ABOUT_THE_METHOD | {ANSWER, PREDICTED_SYNCS}


@dataclass(frozen=True)
class _Shared:
    """A finding that several variants share, shown for the variant where it costs most.

    Attributes:
        variants: the variants that the claim is about as it stands; empty for a trace's finding.
        claim: the claim; a whole sentence where no variant stands before it.
        gain: what acting on it saves at most; empty where that is not known.
        cost_unknown: whether the page says that the cost was not measured.
        place: the line that it is about; None without one.
        evidence: what supports it.
        also_in: the variants that have it with other figures.
        gains: what acting on it saves in those, from the least to the most, as the end of the sentence that names them;
            empty where that is not known.
    """

    variants: Sequence[str]
    claim: str
    gain: str
    cost_unknown: bool
    place: str | None
    evidence: Sequence[str]
    also_in: Sequence[str]
    gains: str


@dataclass(frozen=True)
class _Group:
    """The findings of one rule that have the same advice.

    Attributes:
        rule: the rule's name in words.
        severity: the highest of them.
        findings: those that are shown in full.
        more: the variants of those that are not.
        advice: what to do; may be empty.
        advice_place: the line before the advice; None where the claim names it.
        counter_check, study, condition, basis: how to check it, and why it is reported.
    """

    rule: str
    severity: str
    findings: Sequence[_Shared]
    more: Sequence[str]
    advice: str
    advice_place: str | None
    counter_check: str
    study: str | None
    condition: str | None
    basis: str | None


def findings(items: Sequence[Finding]) -> Html:
    """Findings in the order given, findings about the method last, those of one rule and advice together."""
    by_advice: dict[tuple[str, str, str], list[Finding]] = {}
    for item in sorted(map(with_present_words, items), key=lambda item: item.rule in ABOUT_THE_METHOD):
        by_advice.setdefault((item.rule, item.advice, item.counter_check), []).append(item)
    groups = [_group(group) for group in by_advice.values()]
    return render("page/findings", shown=groups[:_MOST_SHOWN], folded=groups[_MOST_SHOWN:])


def _group(group: Sequence[Finding]) -> _Group:
    first = group[0]
    shared = _shared(group)
    has_place = first.rule == PREDICTED_SYNCS and first.source is not None
    return _Group(
        rule=first.rule.replace("_", " "),
        severity=min((item.severity for item in group), key=SEVERITIES.index),
        findings=shared[:_MOST_SHOWN_IN_FULL],
        more=[
            name
            for shared_finding in shared[_MOST_SHOWN_IN_FULL:]
            for name in (*shared_finding.variants, *shared_finding.also_in)
        ],
        advice=first.advice,
        advice_place=place(first.source) if has_place and first.source is not None else None,
        counter_check=first.counter_check,
        study=first.study,
        condition=first.condition,
        basis=first.basis,
    )


def _shared(group: Sequence[Finding]) -> list[_Shared]:
    """Each finding of a rule and advice once: several variants that have it at the same line share it.

    Severe findings, such as a failed run, stand once for each variant, unless they have exactly the same facts.
    """
    alike: dict[object, list[Finding]] = {}
    for item in group:
        alike.setdefault(_facts(item), []).append(item)
    together: dict[object, list[Finding]] = {}
    for facts, items in alike.items():
        first = items[0]
        line = None if first.source is None else (first.source.file, first.source.line)
        stands_alone = any(item.severity == "high" or item.variant is None for item in items)
        together.setdefault(facts if stands_alone else (first.severity, line), []).extend(items)
    return [_as_the_costliest(items) for items in together.values()]


def _facts(item: Finding) -> object:
    """The facts in which two findings of one rule and advice must agree to be shown once."""
    figures = msgspec.json.encode(item.figures, order="deterministic")
    source = None if item.source is None else (item.source.file, item.source.line)
    return figures, source, item.cost_ns_per_step, item.cost_share, item.on_path_ns, item.profile_slower


def _as_the_costliest(items: Sequence[Finding]) -> _Shared:
    first, *cheaper = sorted(items, key=lambda item: -(item.cost_ns_per_step or 0.0))
    is_same = all(_facts(item) == _facts(first) for item in cheaper)
    costs = [item.cost_ns_per_step for item in cheaper if item.cost_ns_per_step is not None]
    ends = [duration_ns(cost) for cost in (min(costs), max(costs))] if costs else []
    gain = gain_text(first)
    return _Shared(
        variants=_variants([first, *cheaper] if is_same else [first]),
        claim=first.claim if first.variant else claim_at_start(first),
        gain=gain,
        cost_unknown=not gain and first.rule not in _UNPRICED,
        place=None if first.source is None else place(first.source),
        evidence=first.evidence,
        also_in=[] if is_same else _variants(cheaper),
        gains=f": at most {' to '.join(dict.fromkeys(ends))} per step" if costs else "",
    )


def _variants(items: Sequence[Finding]) -> list[str]:
    return [item.variant for item in items if item.variant is not None]


@dataclass(frozen=True)
class DeviceNote:
    """A note on the device, in a few words, for the top of a page."""

    words: str
    tone: str


SIMULATED: Final = DeviceNote("simulated GPU: times mean nothing", "bad")
NO_GPU: Final = DeviceNote("no GPU: CPU timings", "warning")


def device_of_study(study: Comparison) -> DeviceNote | None:
    """The note for studies without a GPU's figures; None with them, and if no run recorded its machine."""
    if study.environment is not None and is_simulated(study.environment.gpu):
        return SIMULATED
    if leads(study):
        return DeviceNote(f"no GPU: estimated for {enumeration(estimated_gpus(study))}", "warning")
    return NO_GPU if study.environment is not None and study.environment.gpu is None else None


def device_of_traces(gpus: Sequence[str | None], *, has_gpu: bool) -> DeviceNote | None:
    """The note on traces with these names of GPUs; `has_gpu`: whether any of them holds GPU work."""
    if any(map(is_simulated, gpus)):
        return SIMULATED
    return None if has_gpu else NO_GPU
