"""Every rule is one module with one fixture: it fires there, and is silent without the fault.

`fixtures/NAME.py` says what the fault is. `fires` returns traces, summaries of several ranks or comparisons with it,
`silent` the same without it.
"""

import dataclasses
import functools
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from figures import BARE_NAME, bare_names_in
from steptrace.document_schemas import figure_table, rule_table, with_table
from steptrace.documents.base import columns_of
from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import Finding
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.findings import RULES, find, find_in_ranks, find_in_trace, words_of
from steptrace.findings.rule import Words

ROOT = Path(__file__).parents[2]
FIXTURES = Path(__file__).with_name("fixtures")
#: Words that a reader of a single trace knows nothing of.
OF_STUDIES = re.compile(r"variant|equivalence|the report|\b(?:data|distributed|scale)\.\w|precision=|here `")


def found_in(subject: TraceSummary | Summary | Comparison) -> list[Finding]:
    """The findings of a trace, of several ranks, or of a study."""
    if isinstance(subject, TraceSummary):
        return find_in_trace(subject)
    return find_in_ranks(subject) if isinstance(subject, Summary) else find(subject)


def fixture_of(rule: str) -> Any:
    return importlib.import_module(f"findings.fixtures.{rule}")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Any]]:
    """What has a rule's fault, made once: no search for findings changes it."""

    @functools.cache
    def subjects(rule: str) -> list[Any]:
        return list(fixture_of(rule).fires(tmp_path_factory.mktemp(rule)))

    return subjects


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_fires_on_its_fixture_and_is_silent_without_the_fault(rule, faulty, tmp_path):
    silent = list(fixture_of(rule).silent(tmp_path))
    assert faulty(rule)
    assert silent
    for subject in faulty(rule):
        (finding,) = found_in(subject)
        assert finding.rule == rule
    for subject in silent:
        assert found_in(subject) == []


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_on_traces_mentions_neither_studies_nor_their_configuration(rule, faulty):
    findings = [item for subject in faulty(rule) for item in found_in(subject)]
    assert findings
    if RULES[rule].in_study is None:
        assert not [item for item in findings if OF_STUDIES.search(f"{item.advice} {item.counter_check}")]


@pytest.mark.parametrize("rule", RULES)
def test_the_sentences_of_a_finding_are_made_of_its_figures_alone(rule, faulty):
    for subject in faulty(rule):
        (finding,) = found_in(subject)
        read = msgspec.json.decode(msgspec.json.encode(finding), type=Finding)
        said = Words(finding.claim, finding.evidence, finding.advice_parts, finding.counter_check)
        assert words_of(read) == said
        assert said.claim
        # A page writes it with a capital letter, which would change a name that is not in backticks.
        assert not BARE_NAME.match(said.claim)
        assert len(said.advice[0]) < 400, "one sentence: what to do"
        assert bare_names_in(" ".join([*said.advice, said.counter_check])) == []
        # All figures are of the declared types, units and all.
        assert msgspec.to_builtins(msgspec.convert(read.figures, RULES[rule].figures)) == finding.figures


@pytest.mark.parametrize("rule", RULES)
def test_no_fact_of_a_finding_depends_on_its_words(rule, faulty, monkeypatch):
    def facts() -> list[Any]:
        found = [finding for subject in faulty(rule) for finding in found_in(subject)]
        without = {"claim", "evidence", "advice", "advice_parts", "counter_check"}
        return [
            {k: v for k, v in json.loads(msgspec.json.encode(place)).items() if k not in without} for place in found
        ]

    before = facts()
    silenced = {name: dataclasses.replace(item, words=lambda _: Words("x")) for name, item in RULES.items()}
    monkeypatch.setattr("steptrace.findings.RULES", silenced)
    assert facts() == before


def test_every_fixture_is_a_rule_s():
    assert {path.stem for path in FIXTURES.glob("*.py")} == set(RULES)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_says_where_its_condition_comes_from_and_what_its_figures_are(rule):
    assert "{" not in rule.condition_text
    assert rule.basis
    assert all(f"{{{name}}}" in rule.condition for name in rule.thresholds), "a threshold that the condition lacks"
    assert [column.name for column in columns_of(rule.figures)] == list(rule.figures.__struct_fields__)
    assert rule.study is None or (ROOT / "config" / "study" / f"{rule.study}.yaml").is_file()


def test_the_documented_rules_and_figures_are_those_of_the_modules():
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    for place, table in (("rules", rule_table), ("figures", figure_table)):
        assert with_table(text, place, table()) == text, "python -m steptrace.document_schemas docs"
    assert text.count("| `sync_bound` |") == 2
