"""The section of a step that tells variants apart where the whole step hides it."""

from typing import Any

from documents import fill
from steptrace.documents.comparison import Comparison
from steptrace.findings.answer import answer_of
from steptrace.findings.sections import differing_section, hidden_section, matrix_section, turn
from steptrace.findings.verdict import verdict_of


def variant(
    name: str, step_ms: float, loss_ms: float | None, verdict: str | None = "faster", **more: Any
) -> dict[str, Any]:
    sections = None if loss_ms is None else {"forward": 30.0, "calc loss": loss_ms}
    ratio = {"value": 100 / step_ms, "low": 90 / step_ms, "high": 110 / step_ms, "verdict": verdict}
    times = {"statistic": "median", "median": step_ms, "runs": 3, "steps": 60}
    return {"name": name, "status": "ok", "baseline": "loop", "step_ms": times, "ratio": ratio,
            "synced_sections_ms": sections, "equivalence": {"status": "same"}} | more  # fmt: skip


LOOP = variant("loop", 1000.0, 600.0, "baseline")


def study(*others: dict[str, Any], **changes: Any) -> Comparison:
    method = {"confidence": 0.95, "noise_floor": 0.01}
    return fill(Comparison, {"variants": [LOOP, *others], "baseline": "loop", "method": method, **changes})


def test_a_section_is_named_where_steps_cannot_be_told_apart_and_it_can():
    padding = variant("padding", 89.4, 1.6)
    fused = variant("fused", 89.0, 0.6)
    found = answer_of(study(padding, fused, alike=["padding", "fused"])).section
    assert found is not None
    assert found.section == "calc loss"
    assert [(row.name, row.step_ms) for row in found.times] == [("fused", 0.6), ("padding", 1.6), ("loop", 600.0)]
    assert [(row.name, row.step_ms) for row in found.hidden] == [("fused", 89.0), ("padding", 89.4)]
    sentence = verdict_of(study(padding, fused, alike=["padding", "fused"])).sentence
    # The chosen variant leads, then what tells the others from it; the baseline's section decides nothing.
    assert sentence.index("padding") < sentence.index("calc loss") < sentence.index("600 µs")
    assert all(figure in sentence for figure in ("89.4 ms", "600 µs", "1.60 ms"))
    assert "600 ms" not in sentence
    assert sentence.count(". ") == 1


def test_sections_that_differ_as_little_as_medians_scatter_tell_nothing():
    alike = study(variant("padding", 89.4, 1.0), variant("fused", 89.0, 0.9), alike=["padding", "fused"])
    assert differing_section(alike) == "calc loss"  # of the loop, which the steps tell apart as well
    assert hidden_section(alike) is None


def test_steps_that_tell_variants_apart_hide_nothing():
    assert hidden_section(study(variant("padding", 50.0, 1.6), variant("fused", 20.0, 0.6))) is None


def test_without_a_verdict_steps_of_nearly_one_length_count_as_alike():
    variants = [
        variant(name, ms, loss, None) for name, ms, loss in (("a", 89.4, 1.6), ("b", 89.0, 0.6), ("c", 104.0, 9.0))
    ]
    found = hidden_section(study(*variants))
    assert found is not None
    assert [row.name for row in found.hidden] == ["b", "a"]


def test_a_study_without_timed_sections_and_a_matrix_have_no_such_section():
    assert differing_section(study(variant("a", 89.0, None))) is None
    of_matrix = variant("a", 89.0, 1.0, cell={"loss.iterations": "4"})
    assert differing_section(study(of_matrix)) is None


def of_matrix(plain_ms: list[float], branch_ms: list[float]) -> Comparison:
    variants = []
    for number, pair in enumerate(zip(plain_ms, branch_ms, strict=True)):
        for entry, ms in zip(("plain", "branch"), pair, strict=True):
            more = {"entry": entry, "cell": {"loss.iterations": str(4**number)}, "baseline": f"plain__{number}"}
            variants.append(variant(f"{entry}__{number}", 89.0, ms, None, **more))
    return fill(Comparison, {"variants": variants, "baseline": "plain__0"})


def test_from_which_value_of_a_matrix_on_a_section_is_clearly_shorter():
    study = of_matrix([1.0, 1.1, 2.0, 9.0], [1.0, 1.0, 1.0, 1.0])
    assert matrix_section(study) == "calc loss"
    plain, branch = ([v for v in study.variants if v.entry == entry] for entry in ("plain", "branch"))
    found = turn("calc loss", branch, plain, "loss.iterations")
    assert found is not None
    assert (found.entry, found.baseline, found.value) == ("branch", "plain", "16")
    assert turn("calc loss", plain, plain, "loss.iterations") is None
    assert turn("no section", branch, plain, "loss.iterations") is None


def test_a_section_that_is_shorter_at_single_values_alone_does_not_turn():
    study = of_matrix([2.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    plain, branch = ([v for v in study.variants if v.entry == entry] for entry in ("plain", "branch"))
    found = turn("calc loss", branch, plain, "loss.iterations")
    assert found is not None
    assert found.value is None
    assert matrix_section(of_matrix([1.0, 1.0], [1.0, 0.9])) is None
