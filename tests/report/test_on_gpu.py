"""The section "On a GPU" of a study without one: committed results beside it, or expectations marked as such."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from markupsafe import Markup
from msgspec.structs import replace

from steptrace.documents.base import write
from steptrace.report.study import first_screen, load_study, on_gpu
from steptrace.report.study.on_gpu import expectations
from steptrace.standing import reference_results


def text_of(html: str) -> str:
    return " ".join(Markup(str(html).replace("<wbr>", "").replace("<", " <")).striptags().split())


def reference(root: Path, comparison: Path, **environment: object) -> Path:
    """A study's results as `make gpu-evidence` commits them."""
    study = load_study(comparison)
    assert study.environment is not None
    machine = root / "reports" / "reference" / "h200"
    path = machine / "masked_loss" / "comparison.json"
    path.parent.mkdir(parents=True)
    (machine / "README.md").write_text("# Reference results\n\nCollected on 2026-11-20 at scale `gpu`.\n")
    return write(path, replace(study, environment=replace(study.environment, **environment)))


def test_a_study_that_was_traced_on_a_gpu_has_no_such_section(make_study: Any) -> None:
    assert on_gpu(load_study(make_study("gpu")), []) is None


def test_a_study_without_predictions_has_none_either(make_study: Any) -> None:
    assert on_gpu(load_study(make_study("all_failed")), []) is None


def test_without_results_from_a_gpu_predictions_say_what_to_expect_and_are_marked_so(make_study: Any) -> None:
    page = text_of(on_gpu(load_study(make_study("cpu")), []) or "")
    assert "Expected, not measured." in page
    assert "ignore_index 0 6 fewer" in page
    assert "No wait is left: the host can launch ahead of the GPU." in page


def test_each_expectation_follows_from_syncs_and_operators_against_the_baseline(study_builder: Any) -> None:
    study_builder.comparison["baseline"] = "base"
    for name, syncs, operators in (
        ("base", 3, 100),
        ("one", 1, 110),
        ("more", 5, 20),
        ("kept", 3, 300),
        ("un", None, 100),
    ):
        ratio = {"value": 1.0, "verdict": "baseline" if name == "base" else "undecided"}
        study_builder.add(name, [20.0], baseline="base", ratio=ratio, operators_per_step=operators,
                          syncs={"predicted_per_step": syncs})  # fmt: skip
    said = {item.variant.name: " ".join(item.sentences) for item in expectations(load_study(study_builder.write()))}
    assert said["base"].startswith("The host waits 3 times a step until all queued work is done")
    assert said["one"].startswith("2 waits fewer, but 1 left")
    assert "operators" not in said["one"]
    assert said["more"].startswith(
        "2 waits more than the baseline: expected to be no faster. 5.00 times fewer operators"
    )
    assert said["kept"].startswith("As many waits as the baseline")
    assert "3.00 times more operators" in said["kept"]
    assert said["un"] == ""


def test_committed_results_stand_beside_the_local_ones_with_machine_and_date(make_study: Any, tmp_path: Path) -> None:
    there = reference(tmp_path, make_study("gpu"))
    page = text_of(on_gpu(load_study(make_study("cpu")), [there]) or "")
    assert "Measured there, not here: the same study on NVIDIA H200" in page
    assert "collected on 2026-11-20" in page
    assert "reports/reference/h200" in page
    assert "Expected, not measured" not in page
    assert "boolean_mask 12.4 ms baseline 6 110 ms baseline 6 " in page  # predicted here, traced there
    assert "On NVIDIA H200: ignore_index is 3.92× faster than boolean_mask" in page
    screen = text_of(first_screen(load_study(make_study("cpu")), [there]))
    assert "Measured on NVIDIA H200 , 2026-11-20: ignore_index is 3.92× faster than boolean_mask" in screen


def test_where_the_gpu_is_simulated_committed_results_stand_beside_it_and_no_expectations(
    make_study: Any, tmp_path: Path
) -> None:
    there = reference(tmp_path, make_study("gpu"))
    study = load_study(make_study("gpu"))
    assert study.environment is not None
    simulated = replace(study, environment=replace(study.environment, gpu="H200 (stand-in)"))
    assert on_gpu(simulated, []) is None
    assert "Measured there, not here" in text_of(on_gpu(simulated, [there]) or "")


@pytest.mark.parametrize("gpu", [None, "a stand-in for a GPU"])
def test_results_of_a_rehearsal_are_not_shown_as_those_of_a_gpu(
    make_study: Any, tmp_path: Path, gpu: str | None
) -> None:
    there = reference(tmp_path, make_study("gpu"), gpu=gpu)
    assert "Expected, not measured" in (on_gpu(load_study(make_study("cpu")), [there]) or "")


def test_a_reference_is_found_below_the_working_folder(
    make_study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = reference(tmp_path, make_study("gpu"))
    monkeypatch.chdir(tmp_path)
    assert [path.resolve() for path in reference_results("masked_loss")] == [there.resolve()]
    assert reference_results("no_such_study") == []
    assert msgspec.json.decode(there.read_bytes())["study"]
