"""All rules of findings: one module of `findings.rules` each. Nothing lists them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from steptrace.documents.finding import Finding
from steptrace.documents.subject import modules_in
from steptrace.findings.rule import TOPICS, AnyRule, Words
from steptrace.format import capitalised
from steptrace.words.finding import claim_of_slow_profile, evidence_of_path


def _rules() -> dict[str, AnyRule]:
    """Every rule by its name, by topic and name.

    Raises:
        ValueError: a rule has another name than its module, or looks at nothing.
    """
    rules: list[AnyRule] = []
    for module in modules_in("steptrace.findings.rules"):
        rule: AnyRule = module.RULE
        name = module.__name__.rpartition(".")[2]
        if rule.name != name:
            raise ValueError(f"the rule in findings/rules/{name}.py is called {rule.name!r}")
        if not rule.looks_at:
            raise ValueError(f"the rule {name!r} has none of in_trace, in_ranks and in_study")
        rules.append(rule)
    return {rule.name: rule for rule in sorted(rules, key=lambda rule: (TOPICS.index(rule.topic), rule.name))}


#: Every rule by its name.
RULES: Final[Mapping[str, AnyRule]] = MappingProxyType(_rules())


def is_for_several_lines(item: Finding) -> bool:
    """Whether a finding's advice is about several lines. Its source is then the first one to look at."""
    return item.rule in RULES and RULES[item.rule].for_several_lines


def with_present_words(item: Finding) -> Finding:
    """The finding with the sentences that this version makes of its figures.

    One whose figures this version does not know, such as that of another version, keeps its sentences.
    """
    words = _present_words(item)
    if words is None:
        return item
    return msgspec.structs.replace(
        item,
        claim=words.claim,
        evidence=words.evidence,
        advice=" ".join(words.advice),
        advice_parts=words.advice,
        counter_check=words.counter_check or "",
    )


def claim_at_start(item: Finding) -> str:
    """A finding's claim at the start of a line, with a capital letter.

    A claim that another version of steptrace wrote stays as it is: it may begin with a name.
    """
    words = _present_words(item)
    return item.claim if words is None else capitalised(words.claim)


def _present_words(item: Finding) -> Words | None:
    try:
        return words_of(item)
    except (KeyError, msgspec.ValidationError):
        return None


def words_of(item: Finding) -> Words:
    """The sentences of a finding, made from its figures.

    Args:
        item: a finding, such as one read from summary.json.

    Raises:
        KeyError: there is no such rule.
        msgspec.ValidationError: the figures are not those of the rule.
    """
    rule = RULES[item.rule]
    words = rule.words(msgspec.convert(item.figures, rule.figures))
    claim = words.claim
    evidence = words.evidence
    if item.on_path_ns is not None:
        evidence = (*evidence, evidence_of_path(item.on_path_ns))
    if item.profile_slower is not None:
        claim = claim_of_slow_profile(claim, item.profile_slower)
    return Words(claim, evidence, words.advice or rule.advice, words.counter_check or rule.counter_check)
