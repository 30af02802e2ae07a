"""The page of results, from results made by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from documents import fill
from steptrace.documents.base import read, write
from steptrace.documents.comparison import Comparison, Partial
from steptrace.documents.run import Environment
from steptrace.errors import RecordError
from steptrace.evidence.tables import render

ROOT = Path(__file__).parents[1]
ENVIRONMENT = fill(Environment, {"gpu": "NVIDIA H200", "torch": "2.11.0+cu130"})


def variant(name: str, **more: Any) -> dict[str, Any]:
    ratio = {"value": 4.0, "low": 3.9, "high": 4.1, "verdict": "faster"}
    return {
        "name": name,
        "step_ms": {"median": 10.0, "low": 9.9, "high": 10.1},
        "ratio": ratio,
        "profiled_over_unprofiled": 1.5,
        "syncs": {"predicted_per_step": 0, "warned_per_step": None, "measured_per_step": 0},
        "equivalence": {"status": "same", "gradient_rel_err": 1e-5, "tolerance": {"gradient": 1e-3}},
    } | more


def row(implementation: str, us: float, **more: Any) -> dict[str, Any]:
    return {
        **{"batch": 1024, "boxes": 256, "mode": "forward", "implementation": implementation, "bytes_moved": 4_000_000},
        **{"us": us, "us_low": us, "us_high": us, "empty_us": 4.0},
        **{"graph_us": us / 2, "graph_us_low": us / 2, "graph_us_high": us / 2, "empty_graph_us": 2.0},
    } | more


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    base = {"value": 1.0, "low": None, "high": None, "verdict": "baseline"}
    mismatch = {"file": "loss.py", "line": 7, "predicted": 1, "warned": None, "traced": 2, "why": "a rule is wrong"}
    counts = {"predicted_per_step": 6, "warned_per_step": None, "measured_per_step": 7}
    studies = {
        "masked_loss": [
            variant("boolean_mask", ratio=base, step_ms={"median": 40.0}, syncs=counts, sync_agreement=[mismatch]),
            variant("ignore_index", whatif={"predicted_ms": 11.0, "measured_ms": 10.0, "error": 0.1, "reason": None}),
        ],
        "giou_heavy": [
            variant("kernel__iterations-4", ratio=base, synchronised_sections_ms={"calc loss": 3.0}),
            variant("kernel_conditional__iterations-4", synchronised_sections_ms={"calc loss": 1.5}),
        ],
        "giou": [
            variant("loop", ratio=base, synchronised_sections_ms={"copy data": 1.0, "forward": 2.0, "calc loss": 30.0}),
            variant("fused", synchronised_sections_ms={"copy data": 1.0, "forward": 2.0, "calc loss": 0.1}),
        ],
    }
    for name, variants in studies.items():
        write(tmp_path / name / "comparison.json", fill(Comparison, {"study": name, "variants": variants}))
    rows = [row("padding", 60.0), row("compiled", 20.0), row("fused", 5.0)]
    rows += [row("fused", 100.0, batch=65536, bytes_moved=100_000_000)]
    bench = {"predictions": "float32", "targets": "uint8", "device": "cuda", "copy_gb_s": 4000.0, "rows": rows}
    failed = {
        "implementation": "triton",
        "batch": 1024,
        "boxes": 256,
        "mode": "forward",
        "message": "no module named triton",
    }
    bench |= {"failures": [failed], "complete": False}
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "giou_article_float32.json").write_text(json.dumps(bench))
    counted = {"batch": 65536, "boxes": 256, "mode": "forward", "implementation": "fused", "bytes_moved": 100_000_000}
    counted |= {"kernel": "void (anonymous namespace)::loss_kernel<float, true>(float const*)", "duration_ns": 41_000}
    counted |= {"dram_bytes": 2**30, "dram_pct_of_peak": 81.2, "registers": 40.0, "stalled_most_on": "long_scoreboard"}
    counters = {"predictions": "float32", "targets": "uint8", "rows": [counted]}
    (tmp_path / "bench" / "counters_float32.json").write_text(json.dumps(counters))
    write(tmp_path / "environment.json", ENVIRONMENT)
    (tmp_path / "left_out.txt").write_text("all_reduce: left out, it needs 2 GPUs, and there is one\n")
    return tmp_path


def cells(page: str, first: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith(f"| {first} |")]


def test_the_articles_figures_stand_beside_the_machines(folder: Path) -> None:
    page = render([folder])
    rows = [line for line in cells(page, "masked_loss") if line[2].startswith("step")]
    assert rows == [
        ["masked_loss", "boolean_mask", "step, profiled", "1.30 s", "60.0 ms"],  # 40 ms x 1.5
        ["masked_loss", "ignore_index", "step, profiled", "5.40 ms", "15.0 ms"],
        ["masked_loss", "ignore_index", "step", "330 ms", "10.0 ms"],
    ]
    assert ["giou", "loop", "calc loss", "938 ms", "30.0 ms"] in cells(page, "giou")
    assert "all_reduce: left out, it needs 2 GPUs, and there is one" in page


def test_a_study_is_a_table_of_its_variants(folder: Path) -> None:
    page = render([folder])
    assert cells(page, "ignore_index")[0][:7] == [
        *("ignore_index", "10.00 ms", "4.00× (3.90 to 4.10)", "faster", "0", "not measured", "0")
    ]
    assert cells(page, "ignore_index")[0][10:12] == ["11.0 ms", "10 %"]
    assert cells(page, "boolean_mask")[0][4:7] == ["6", "not measured", "7"]


def test_a_place_where_predictions_are_wrong_is_explained(folder: Path) -> None:
    assert ["masked_loss", "boolean_mask", "loss.py:7", "1", "not measured", "2", "a rule is wrong"] in cells(
        render([folder]), "masked_loss"
    )


def test_the_fused_operator_is_held_against_the_others_and_its_floor(folder: Path) -> None:
    small, large = (line for line in cells(render([folder]), "float32, uint8") if line[4] == "fused")
    # 60 and 20 over 5 us; in a graph 2.5 us over an empty one of 2 us and 4 MB at 4,000 GB/s, which is 1 us
    assert small[5:] == ["5.00 µs", "2.50 µs", "12.00×", "4.00×", "0.83×", "40 %"]
    assert large[-1] == "50 %"  # 100 MB in 50 us are 2,000 GB/s


def test_counters_stand_under_the_names_that_the_benchmark_gave_them(folder: Path) -> None:
    page = render([folder])
    assert "### counters_float32" in page
    assert cells(page, "65536")[0][3] == "fused"


def test_a_rehearsal_and_a_partial_study_are_marked_as_such(folder: Path) -> None:
    assert "Not a GPU's results" not in render([folder])
    write(folder / "environment.json", replace(ENVIRONMENT, gpu=None, cpu="a cpu"))
    file = folder / "giou" / "comparison.json"
    write(file, replace(read(file, Comparison), partial=Partial(runs=2, planned=6)))
    page = render([folder])
    assert "> **Not a GPU's results**" in page
    assert "### Study giou\n\nPartial: 2 of 6 runs." in page


def test_a_folder_that_is_no_machines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no collected results"):
        render([tmp_path])


def test_a_comparison_that_is_not_one_of_this_version_is_refused(folder: Path) -> None:
    (folder / "giou" / "comparison.json").write_text('{"study": "giou", "variants": []}')
    with pytest.raises(RecordError, match=r"does not hold a Comparison .*missing required field") as caught:
        render([folder])
    assert caught.value.where == str(folder / "giou" / "comparison.json")
    assert caught.value.next_step == "collect it again: make gpu-evidence"


def test_the_committed_page_is_made_of_the_committed_results() -> None:
    folders = sorted(file.parent for file in ROOT.glob("reports/reference/*/environment.json"))
    page = ROOT / "docs" / "gpu-results.md"
    assert page.is_file() == bool(folders)
    if folders:
        assert page.read_text(encoding="utf-8") == render(folders)
        assert all(json.loads((folder / "environment.json").read_text())["gpu"] for folder in folders)


def test_what_a_benchmark_could_not_measure_is_said(folder: Path) -> None:
    page = render([folder])
    assert "Not measured: giou_article_float32, triton: no module named triton" in page
    assert "Not measured: giou_article_float32: cut off before its last size" in page
