"""What to do first: the findings that a page and the terminal begin with."""

from collections.abc import Sequence
from typing import Final

from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import ANSWER, PREDICTED_SYNCS, Finding
from steptrace.findings.estimated import leads
from steptrace.findings.registry import RULES

#: How many findings to begin with.
MOST_RECOMMENDED: Final = 3
#: Rules about how something was measured: they stand behind the others.
ABOUT_THE_METHOD: Final = frozenset(name for name, rule in RULES.items() if rule.topic == "method")


def recommended(findings: Sequence[Finding]) -> list[Finding]:
    """What to do first, one finding of each rule.

    A study's answer leads. After it come the findings of the variant that the answer names, and of the study as a
    whole.
    """
    answer = next((item for item in findings if item.rule == ANSWER), None)
    if answer is not None and answer.variant is not None:
        findings = [item for item in findings if item.variant in (answer.variant, None)]
    candidates = [item for item in findings if item.rule not in ABOUT_THE_METHOD]
    # A change of the profiler's options alone does not change the program.
    candidates = candidates or [item for item in findings if item.rule != "profiler_overhead"]
    candidates = [item for item in candidates if item.severity != "info" or not _unpriced(item)] or candidates
    by_rule: dict[str, Finding] = {}
    for item in _in_order(candidates):
        by_rule.setdefault(item.rule, item)
    return list(by_rule.values())[:MOST_RECOMMENDED]


def first_steps(study: Comparison) -> list[Finding]:
    """What to do first by a study.

    Where estimates of a GPU lead, findings that save a CPU's time are left out: they say nothing of the GPU.
    """
    on_cpu = leads(study)
    return recommended([item for item in study.findings if item.cost_ns_per_step is None or not on_cpu])


def _unpriced(item: Finding) -> bool:
    return item.cost_ns_per_step is None and item.cost_share is None and item.rule != ANSWER


def _in_order(findings: Sequence[Finding]) -> list[Finding]:
    """The answer and errors, then what costs most; predicted syncs follow the high costs, and the rest is last."""
    answers = [item for item in findings if item.rule == ANSWER]
    unpriced = [item for item in findings if _unpriced(item)]
    priced = [item for item in findings if item not in unpriced and item not in answers]
    priced.sort(key=lambda item: -(item.cost_ns_per_step or item.cost_share or 0))
    high = max((at for at, item in enumerate(priced, start=1) if item.severity == "high"), default=0)
    errors = [item for item in unpriced if item.severity == "high"]
    predicted = [item for item in unpriced if item.rule == PREDICTED_SYNCS and item not in errors]
    remaining = [item for item in unpriced if item not in errors and item not in predicted]
    return [*answers, *errors, *priced[:high], *predicted, *priced[high:], *remaining]
