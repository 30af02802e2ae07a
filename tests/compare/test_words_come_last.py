"""Sentences are made of facts, and no fact of a sentence: with every sentence replaced by "x" all other JSON stays."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders import TraceBuilder
from compare.conftest import StudyFolder
from documents import compare
from steptrace.analysis import summarize_trace
from steptrace.findings import with_findings
from steptrace.report.study.first_screen import _no_verdict
from steptrace.report.study.variants import care, load_study
from steptrace.trace.link import read_trace
from steptrace.words import notes, quality

#: The fields that hold sentences.
SENTENCES = frozenset({"says", "warnings", "uneven", "claim", "evidence", "advice", "counter_check"})


def facts(value: Any) -> Any:
    """JSON data without its sentences."""
    if isinstance(value, dict):
        return {key: facts(item) for key, item in value.items() if key not in SENTENCES}
    return [facts(item) for item in value] if isinstance(value, list) else value


def without_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every code be the sentence "x"."""
    monkeypatch.setattr(notes, "_WORDS", dict.fromkeys(notes._WORDS, lambda **_: "x"))
    monkeypatch.setattr(quality, "_RESULTS", dict.fromkeys(quality._RESULTS, lambda *_, **__: "x"))
    monkeypatch.setattr(quality, "_REMEDIES", {})


def summary_in(folder: Path) -> Any:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.op("aten::mm", 0, 90)
    builder.kernel(90, 100, 100)
    builder.step(2, 1_000, 1_000)
    builder.kernel(1_090, 1_050, 100)
    return json.loads(msgspec.json.encode(summarize_trace(read_trace(builder.write(folder / "trace.json")))))


def test_a_trace_s_facts_are_the_same_without_its_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = summary_in(tmp_path)
    without_words(monkeypatch)
    after = summary_in(tmp_path)
    assert facts(before) == facts(after)
    assert any(check["warns"] for check in after["quality"]["checks"])
    assert {check["says"] for check in after["quality"]["checks"]} == {"x"}


def test_a_study_s_facts_and_what_its_page_shows_are_the_same_without_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = StudyFolder(tmp_path)
    study.make_study([{"name": "base"}, {"name": "other"}], repeats=2)
    for repeat in range(2):
        study.add_run("base", repeat, [20.0] * 20)
    study.add_run("other", 0, [10.0] * 20)

    def told() -> tuple[Any, int, int]:
        found: Any = json.loads(json.dumps(compare(study.path)))
        file = study.path / "comparison.json"
        file.write_text(json.dumps(found))
        whole = with_findings(load_study(file))
        return facts(json.loads(msgspec.json.encode(whole))), len(care(whole)), len(_no_verdict(whole))

    before = told()
    without_words(monkeypatch)
    after = told()
    assert before[0] == after[0]
    assert before[2] == after[2] == 1
    assert any(variant["noise"]["notes"] for variant in after[0]["variants"])
