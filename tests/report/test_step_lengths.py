"""A page has one length of a step. Another length has a name of its own, and a sentence that reconciles the two."""

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from builders import TraceBuilder
from documents import fill
from recorded import NAMES
from steptrace.analysis import summarize
from steptrace.documents.base import read
from steptrace.documents.comparison import Comparison
from steptrace.documents.summary import Summary
from steptrace.findings import with_findings, with_trace_findings
from steptrace.findings.headline import step_lengths_of
from steptrace.report.study.first_screen import all_findings, first_screen
from steptrace.report.trace.page import page_html
from steptrace.report.trace.view import TraceView, trace_views
from steptrace.words.headline import step_lengths_texts

ROOT: Final = Path(__file__).parents[2] / "reports" / "reference" / "h100"
MS: Final = 1_000_000
_UNITS: Final = {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}
_TIME: Final = r"([\d.,]+) (ns|µs|ms|s)\b"
#: What is said of a length, and which one it is.
_SAID: Final = {
    rf"of {_TIME} per step": "step",
    rf"{_TIME} a step\b": "step",
    rf"Profiled step(?:, mean)? {_TIME}": "step",
    rf"profiled step takes {_TIME}": "step",
    rf"Span of (?:the|a) step(?:, mean)? {_TIME}": "span",
    rf"it spans {_TIME}": "span",
    rf"a span is {_TIME}": "span",
}


def words_of(page: str) -> str:
    """The text of a page."""
    text = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text.replace("<wbr>", ""))))


def said(text: str) -> list[tuple[str, str, float]]:
    """Every length of a step that a page gives: the words, which length it is, and its milliseconds."""
    found = [(match, kind) for pattern, kind in _SAID.items() for match in re.finditer(pattern, text)]
    return [(m.group(0), kind, float(m.group(1).replace(",", "")) * _UNITS[m.group(2)]) for m, kind in found]


def ask(view: TraceView, text: str) -> None:
    """Hold every length on the page against the one that its name stands for."""
    expected = {"step": view.step_ms, "span": view.span_ms}
    for words, kind, ms in said(text):
        assert ms == pytest.approx(expected[kind], rel=0.01, abs=0.001), words
    if view.step_ms is None or view.span_ms is None:
        return
    apart = abs(view.span_ms - view.step_ms) > 0.01 * view.step_ms
    lengths = step_lengths_of(view.trace)
    assert (lengths.span is not None) == apart
    assert all(sentence in text for sentence in step_lengths_texts(lengths))


def page_of(summary: Summary) -> tuple[TraceView, str]:
    (view,) = trace_views(with_trace_findings(summary))
    return view, words_of(page_html(view.title, [view], None))


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_recorded_trace_has_one_length_of_a_step(
    name: str, recorded_summary: Callable[[str], Summary]
) -> None:
    ask(*page_of(recorded_summary(name.removesuffix(".json.gz"))))


def test_the_page_of_a_host_that_runs_ahead_has_one_length_and_a_span_beside_it() -> None:
    view, text = page_of(summarize([ROOT / "masked_loss" / "where" / "trace.json.gz"])[0])
    assert (round(view.step_ms), round(view.span_ms)) == (308, 495)
    kinds = {kind for _, kind, _ in said(text)}
    assert kinds == {"step", "span"}
    ask(view, text)


def test_a_step_that_waits_for_the_work_of_an_earlier_one_spans_more_than_it_takes(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.gpu("earlier", 0, 14 * MS, None)
    builder.step(6, MS, 5 * MS)
    builder.kernel(2 * MS, 14 * MS, 35 * MS)
    view, text = page_of(summarize([builder.write(tmp_path / "trace.json")])[0])
    assert (view.step_ms, view.span_ms) == (35.0, 48.0)
    ask(view, text)


@pytest.mark.parametrize("study", ["giou", "input_pipeline", "masked_loss"])
def test_the_page_of_a_study_names_the_lengths_that_are_not_the_step_time(study: str) -> None:
    comparison = with_findings(read(ROOT / study / "comparison.json", Comparison))
    text = words_of(str(first_screen(comparison)) + str(all_findings(comparison)))
    profiled = [v for v in comparison.variants if v.overview is not None]
    assert ("A profiled step takes" in text) == any(v.profiled_over_unprofiled is not None for v in profiled)
    means = [v.input.step_ms for v in comparison.variants if v.input is not None and v.input.step_ms is not None]
    for match in re.finditer(rf"of {_TIME} per unprofiled step, mean", text):
        ms = float(match.group(1).replace(",", "")) * _UNITS[match.group(2)]
        assert any(ms == pytest.approx(mean, rel=0.01) for mean in means), match.group(0)
    assert not re.search(rf"of {_TIME} per unprofiled step(?!, mean)", text)


@pytest.mark.parametrize(("mean", "apart"), [(63.3, True), (60.8, False)])
def test_a_mean_step_that_is_not_the_step_time_is_reconciled_with_it(mean: float, *, apart: bool) -> None:
    times = {"statistic": "median", "median": 60.6, "mean": mean, "runs": 1, "steps": 60}
    waits = {"wait_ms": 20.0, "counted_ms": 20.0, "step_ms": mean, "idle_part": 1.0, "share": 20 / mean}
    variant = {"name": "v", "status": "ok", "baseline": "v", "step_ms": times, "input": waits}
    made = with_findings(fill(Comparison, {"baseline": "v", "variants": [variant]}))
    (finding,) = [item for item in made.findings if item.rule == "input_bound"]
    assert any("60.6 ms" in line and "median" in line for line in finding.evidence) == apart


def test_the_unprofiled_lengths_are_named_beside_the_profiled_one() -> None:
    entry = {
        "unprofiled_step_ns": 28 * MS, "unprofiled_mean_ns": 125 * MS, "profiled_over_unprofiled": 1.84,
        "overview": {"kind": "host", "steps": 3, "window_ns": 1_941 * MS, "step_ns": 647.0 * MS},
        "steps": [{"index": k, "start_ns": 0, "dur_ns": 647 * MS, "host_dur_ns": 647 * MS} for k in range(3)],
        "step_kinds": [{"kind": "usual", "steps": 7, "of": 8, "median_ns": 27 * MS}, {"kind": "other", "of": 8}],
    }  # fmt: skip
    (view,) = trace_views(fill(Summary, {"traces": [entry]}))
    (sentence,) = step_lengths_texts(step_lengths_of(view.trace))
    assert re.findall(r"[\d.]+(?: ms|×)", sentence) == ["28.0 ms", "27.0 ms", "125 ms", "1.84×"]
