"""Every figure of a step stands in every place that shows figures: one that is declared cannot be forgotten."""

import re
from pathlib import Path

import pytest

from builders import TraceBuilder
from documents import fill, plain
from steptrace import format as fmt
from steptrace.analysis import load_trace, summarize_trace
from steptrace.compare.gates import outcomes
from steptrace.diff import diff, read_sides
from steptrace.document_schemas import schema_of, subject_table, with_table
from steptrace.documents.comparison import Comparison
from steptrace.documents.paths import check_key
from steptrace.documents.steps import STEP_FIGURES
from steptrace.documents.summary import Summary
from steptrace.report.diff import in_words, page_html
from steptrace.report.study.variants import variants
from steptrace.report.trace import page as trace_page

DOCS = Path(__file__).parents[2] / "docs"

each_figure = pytest.mark.parametrize("figure", STEP_FIGURES, ids=lambda figure: figure.name)


def steps(kernels: int) -> TraceBuilder:
    """Three steps, each with a product of so many kernels, every second on another stream."""
    builder = TraceBuilder()
    builder.metadata["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9}]
    product = {"Input Dims": [[512, 512], [512, 512]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    for index in range(3):
        ts = index * 1_000_000
        builder.step(index, ts, 900_000)
        builder.op("aten::mm", ts + 1_000, 500_000, **product)
        for k in range(kernels):
            at = ts + 2_000 + k * 10_000
            builder.kernel(at, at + 5_000, 20_000, **{"stream": 7 + k % 2, "blocks per SM": 0.5})
    return builder


@pytest.fixture(scope="module")
def summarized(tmp_path_factory):
    return summarize_trace(load_trace(steps(3).write(tmp_path_factory.mktemp("figures") / "trace.json")))


def shown(page: str) -> str:
    return " ".join(re.sub("<[^>]+>", " ", page).split())


def test_each_is_measured_and_stands_on_the_page_of_a_trace(summarized):
    page = trace_page.page_html("a trace", trace_page.trace_views(Summary(warnings=(), traces=(summarized,))), None)
    for figure in STEP_FIGURES:
        value = getattr(summarized, figure.name)
        assert value is not None
        assert plain(summarized)[figure.name] == value
        assert f"<dt>{figure.heading}</dt><dd>{fmt.with_unit(value, figure.unit)}</dd>" in page


@each_figure
def test_without_a_gpu_or_steps_it_is_not_measured(figure):
    builder = TraceBuilder()
    builder.step(0, 0, 100)
    builder.op("aten::mm", 10, 50)
    assert getattr(builder.summary(), figure.name) == (1 if figure.name == "operators_per_step" else None)
    empty = TraceBuilder()
    empty.kernel(0, 10, 10)
    assert not (figure.name.endswith("_per_step") and getattr(empty.summary(), figure.name) is not None)


@each_figure
def test_it_stands_in_a_study(figure, summarized):
    value = getattr(summarized, figure.name)
    study = fill(Comparison, {"variants": [{"name": "a", figure.name: value}]})
    page = shown(str(variants(study)))
    assert figure.heading in page
    assert fmt.with_unit(value, figure.unit) in page


def test_each_stands_in_a_diff(tmp_path):
    a, b = ([steps(kernels).write(tmp_path / f"{kernels}.json")] for kernels in (3, 4))
    result = diff(*read_sides(a, b))
    page = page_html(result)
    for figure in STEP_FIGURES:
        assert figure.heading in in_words(result)
        assert fmt.with_unit(result.figures[figure.name].b, figure.unit) in shown(page)
        assert f"<dt>{figure.heading}</dt>" in page


@each_figure
def test_a_gate_can_hold_it(figure):
    check_key(figure.name)
    study = fill(Comparison, {"study": "s", "variants": [{"name": "a", figure.name: 3.0}]})
    (broken,) = outcomes(study, {"s": {"a": {figure.name: {"at_most": 2}}}})
    assert (broken.outcome, broken.value) == ("broken", 3.0)


def test_each_stands_in_the_schemas_and_the_docs():
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert with_table(text, "subjects of a trace", subject_table()) == text, "python -m steptrace.document_schemas docs"
    for document, kind in (("summary", "TraceSummary"), ("comparison", "VariantResult")):
        declared = schema_of(document)["$defs"][kind]["properties"]
        for figure in STEP_FIGURES:
            assert declared[figure.name]["description"] == figure.meaning
            assert f"`{figure.name}`" in text
