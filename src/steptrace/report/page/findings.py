"""What a page leads with: the findings to begin with, all with their evidence, and a badge where times are no GPU's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import ANSWER, PREDICTED_SYNCS, SEVERITIES, Finding
from steptrace.documents.run import is_simulated
from steptrace.findings.estimated import estimated_gpus, leads
from steptrace.format import enumeration
from steptrace.report.page.markup import Html, render

#: How many recommendations stand at the top; the section `Findings` has all.
MOST_FINDINGS: Final = 3

#: So many rules' findings stand open; the others fold.
_MOST_SHOWN: Final = 3
#: Findings shown in full under one rule and advice; of others only the variants are named.
_MOST_SHOWN_IN_FULL: Final = 6
#: Rules about how something was measured: they stand behind the others.
ABOUT_THE_METHOD: Final = frozenset({"noise", "profiler_overhead", "environments_differ"})


def findings(items: Sequence[Finding]) -> Html:
    """Findings in the order given, those about the method last; those of one rule and advice stand together."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for item in sorted(items, key=lambda item: item.rule in ABOUT_THE_METHOD):
        groups.setdefault((item.rule, item.advice, item.counter_check), []).append(item)
    return render(
        "page/findings",
        shown=_MOST_SHOWN,
        unpriced=ABOUT_THE_METHOD | {ANSWER, PREDICTED_SYNCS},
        groups=[
            {
                "rule": group[0],
                "severity": min((item.severity for item in group), key=SEVERITIES.index),
                "findings": (alike := _alike(group))[:_MOST_SHOWN_IN_FULL],
                "more": [name for _, names in alike[_MOST_SHOWN_IN_FULL:] for name in names],
            }
            for group in groups.values()
        ],
    )


def _alike(group: Sequence[Finding]) -> list[tuple[Finding, list[str]]]:
    """Findings that say the same of several variants as one, each with the names of its variants."""
    alike: dict[object, tuple[Finding, list[str]]] = {}
    for item in group:
        _, names = alike.setdefault((item.claim, item.evidence, item.cost_ns_per_step, item.cost_share), (item, []))
        names += [] if item.variant is None else [item.variant]
    return list(alike.values())


def _unpriced(item: Finding) -> bool:
    return item.cost_ns_per_step is None and item.cost_share is None and item.rule != ANSWER


def recommended(findings: Sequence[Finding]) -> list[Finding]:
    """What to do first, one finding of each rule.

    A study's answer leads, and behind it stands only what remains in the variant that it names, and in the study as a
    whole.
    """
    answer = next((item for item in findings if item.rule == ANSWER), None)
    if answer is not None and answer.variant is not None:
        findings = [item for item in findings if item.variant in (answer.variant, None)]
    candidates = [item for item in findings if item.rule not in ABOUT_THE_METHOD]
    # What only the profiler's own options change is no advice on the program.
    candidates = candidates or [item for item in findings if item.rule != "profiler_overhead"]
    candidates = [item for item in candidates if item.severity != "info" or not _unpriced(item)] or candidates
    by_rule: dict[str, Finding] = {}
    for item in _in_order(candidates):
        by_rule.setdefault(item.rule, item)
    return list(by_rule.values())[:MOST_FINDINGS]


def first_steps(study: Comparison) -> list[Finding]:
    """What to do first by a study; what a CPU's step would save says nothing of a GPU that is estimated."""
    on_cpu = leads(study)
    return recommended([item for item in study.findings if item.cost_ns_per_step is None or not on_cpu])


def _in_order(findings: Sequence[Finding]) -> list[Finding]:
    """The answer and errors, then what costs most; predicted syncs follow the high costs, and the rest is last."""
    answers = [item for item in findings if item.rule == ANSWER]
    unpriced = [item for item in findings if _unpriced(item)]
    priced = [item for item in findings if item not in unpriced and item not in answers]
    priced.sort(key=lambda item: -(item.cost_ns_per_step or item.cost_share or 0))
    high = max((at for at, item in enumerate(priced, start=1) if item.severity == "high"), default=0)
    errors = [item for item in unpriced if item.severity == "high"]
    predicted = [item for item in unpriced if item.rule == PREDICTED_SYNCS and item not in errors]
    others = [item for item in unpriced if item not in errors and item not in predicted]
    return [*answers, *errors, *priced[:high], *predicted, *priced[high:], *others]


@dataclass(frozen=True)
class DeviceNote:
    """What to know of the device before anything else, in a few words."""

    words: str
    tone: str


SIMULATED: Final = DeviceNote("simulated GPU: times mean nothing", "bad")
NO_GPU: Final = DeviceNote("no GPU: CPU timings", "warning")


def device_of_study(study: Comparison) -> DeviceNote | None:
    """The note on whose figures lead; None for a GPU's, and where no run recorded its machine."""
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
