"""A study with a matrix: lines over the matrix's values in the place of long names."""

import re
import xml.etree.ElementTree as ET

from msgspec.structs import replace

from documents import an_estimate, fill
from report.conftest import BASE, ratio
from steptrace.documents.finding import ANSWER, Finding
from steptrace.findings import find
from steptrace.report.index import load_index
from steptrace.report.study import first_screen
from steptrace.report.study.matrix import is_matrix, matrix, with_shown_names


def add(builder, entry, value, cell, **more):
    suffix = "__".join(f"{key.rpartition('.')[2]}-{item}" for key, item in cell.items())
    verdict = BASE if entry == "plain" else ratio(value, value * 0.9, value * 1.1, "faster")
    builder.comparison["baseline"] = "plain__batch-4"
    variant = builder.add(
        f"{entry}__{suffix}",
        [10.0 * int(cell["data.batch"]) / value] * 2,
        ratio=verdict,
        entry=entry,
        cell=cell,
        **more,
    )
    variant["baseline"] = f"plain__{suffix}"


def over_batches(builder, **more):
    for batch in ("4", "16", "64"):
        add(builder, "plain", 1.0, {"data.batch": batch}, **more)
        add(builder, "fused", 2.0, {"data.batch": batch}, **more)
    return builder.study()


def test_a_matrix_is_a_line_a_variant_over_its_values(study_builder):
    study = over_batches(study_builder)
    assert is_matrix(study)
    html = str(matrix(study))
    (picture,) = [ET.fromstring(svg) for svg in re.findall(r"<svg class=\"wide lines\".*?</svg>", html)]
    texts = list(picture.iter("text"))
    assert [text.text for text in texts if text.get("text-anchor") == "middle"] == ["4", "16", "64"]
    assert {text.text for text in texts if text.get("class") == "name"} == {"plain", "fused"}
    assert len(list(picture.iter("circle"))) == 6
    names = re.findall(r'<th scope="row" class="name">(.*?)</th>', html)
    assert names == ["plain", "fused"]
    assert html.count('data-label="batch 16"') == 2


def test_the_page_of_a_matrix_leads_with_the_picture_and_folds_the_list_of_its_variants(study_builder):
    screen = str(first_screen(with_shown_names(over_batches(study_builder))))
    assert (
        screen.index("wide lines")
        < screen.index('<details class="each">')
        < screen.index('class="compact sortable result')
    )
    shown = screen[: screen.index('<details class="each">')]
    assert "__" not in re.sub(r"<[^>]+>", "", shown.replace("<wbr>", ""))


def test_advice_and_checks_have_the_names_of_the_study_s_file(study_builder):
    for batch in ("4", "16"):
        add(study_builder, "plain", 1.0, {"data.batch": batch})
        add(study_builder, "fused", 2.0, {"data.batch": batch})
    # Of two variants the answer was not checked, so they are named.
    for variant in study_builder.comparison["variants"][2:]:
        variant["equivalence"] = {**variant["equivalence"], "status": "not measured"}
    finding = {"rule": "r", "severity": "warning", "claim": "it waits", "variant": "fused__batch-4", "advice": "Wait."}
    study_builder.comparison["findings"] = [finding]
    study = study_builder.study()
    of_answer = [item for item in find(study) if item.rule == ANSWER]
    study = with_shown_names(replace(study, findings=(*of_answer, *study.findings)))
    screen = str(first_screen(study))
    shown = re.sub(r"<[^>]+>", "", screen[: screen.index("wide lines")].replace("<wbr>", ""))
    assert "__" not in shown
    assert "fused (batch 16)" in shown  # in the checks


def test_a_matrix_of_two_keys_has_a_picture_for_each_value_of_the_shorter_one(study_builder):
    for precision in ("fp32", "bf16"):
        for batch in ("4", "16", "64"):
            add(study_builder, "plain", 1.0, {"data.batch": batch, "precision": precision})
    html = str(matrix(study_builder.study()))
    assert html.count("wide lines") == 2
    assert html.count('<th scope="row" class="name">plain</th>') == 2


def test_without_a_gpu_the_picture_is_of_the_estimates(study_builder):
    study_builder.comparison["environment"] = {**study_builder.comparison["environment"], "gpu": None}
    for n, batch in enumerate(("4", "16", "64")):
        for entry in ("plain", "fused"):
            low = (n + 1) * (5.0 if entry == "fused" else 10.0)
            add(study_builder, entry, 2.0, {"data.batch": batch}, estimates=[an_estimate(low, low * 1.2)])
    assert "estimated for H100" in str(matrix(study_builder.study()))


def test_names_in_sentences_are_those_of_the_study_s_file_with_the_matrix_s_values(study_builder):
    study = over_batches(study_builder)
    finding = fill(Finding, {"rule": "r", "variant": "fused__batch-16", "claim": "`fused__batch-16` waits"})
    shown = with_shown_names(replace(study, findings=(finding,), text="x/fused__batch-16/run0"))
    assert [variant.name for variant in shown.variants[:2]] == ["plain (batch 4)", "fused (batch 4)"]
    assert {variant.baseline for variant in shown.variants[:2]} == {"plain (batch 4)"}
    assert (shown.findings[0].variant, shown.findings[0].claim) == ("fused (batch 16)", "`fused (batch 16)` waits")
    assert shown.text == "x/fused__batch-16/run0"  # paths lead to files
    (entry,) = load_index([study_builder.write()], "reports")
    assert "__" not in entry.headline


def test_a_study_without_a_matrix_is_none(study_builder):
    study_builder.add("a__b-1", [10.0])
    study = study_builder.study()
    assert not is_matrix(study)
    assert with_shown_names(study) is study


def test_a_section_that_tells_variants_apart_has_a_picture_of_its_own_with_where_it_turns(study_builder):
    for number, batch in enumerate(("4", "16", "64")):
        for entry, ms in (("plain", 1.0 + number), ("fused", 1.0)):
            sections = {"forward": 5.0, "calc loss": ms}
            add(study_builder, entry, 1.0, {"data.batch": batch}, synced_sections_ms=sections)
    html = str(matrix(study_builder.study()))
    pictures = [ET.fromstring(svg) for svg in re.findall(r"<svg class=\"wide lines\".*?</svg>", html)]
    assert len(pictures) == 2
    assert len(list(pictures[1].iter("circle"))) == 6
    (caption,) = re.findall(r'<p class="note">(.*?)</p>', html)
    assert "<code>fused</code>" in caption
    assert "batch 16 " in caption


def test_operators_without_a_rule_are_named_below_the_estimated_picture(study_builder):
    missing = {
        "name": "mine.op.default",
        "reason": "a custom operator",
        "share_pct": 1.0,
        "calls": 1.0,
        "file": None,
        "line": None,
    }
    pair = {"baseline": "plain", "saved_ms": [1.0, 2.0], "times_as_fast": [1.5, 2.0], "faster_pct": 100.0}
    for batch in ("4", "16"):
        for entry, low in (("plain", 20.0), ("fused", 5.0)):
            estimate = an_estimate(low, 1.2 * low) | {"not_estimated": [missing]}
            estimate |= {} if entry == "plain" else {"difference": pair}
            add(study_builder, entry, 1.0, {"data.batch": batch}, estimates=[estimate])
    study_builder.comparison["environment"] = {**study_builder.comparison["environment"], "gpu": None}
    assert "<code>mine.op</code>" in str(matrix(study_builder.study()))


def test_the_work_saved_has_a_picture_that_says_from_where_it_makes_a_step_faster(study_builder):
    for number, batch in enumerate(("4", "16", "64")):
        for entry in ("plain", "fused"):
            estimate = an_estimate(10.0, 12.0)
            if entry == "fused":
                saved = [0.0, 0.1] if number == 0 else [0.5 * number, 1.0 * number]
                estimate |= {
                    "difference": {
                        "baseline": f"plain__batch-{batch}",
                        "saved_ms": saved,
                        "times_as_fast": [1.0, 1.2],
                        "faster_pct": 90.0,
                        "gpu_saved_ms": [0.1 + number, 0.2 + number],
                    }
                }
            add(study_builder, entry, 1.0, {"data.batch": batch}, estimates=[estimate])
    study_builder.comparison["environment"] = {**study_builder.comparison["environment"], "gpu": None}
    html = str(matrix(study_builder.study()))
    pictures = [ET.fromstring(svg) for svg in re.findall(r"<svg class=\"wide lines\".*?</svg>", html)]
    assert [len(list(picture.iter("circle"))) for picture in pictures] == [6, 3]
    (caption,) = re.findall(r'<p class="note">(.*?)</p>', html)
    assert "<code>fused</code>" in caption
    assert "batch 16 " in caption
