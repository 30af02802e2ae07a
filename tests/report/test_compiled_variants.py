"""What a study says of variants that compile: the time it took, graph breaks, and what the estimate makes of it."""

from typing import Any

from shown import with_plain_spaces
from steptrace.report.study.estimate import estimate
from steptrace.report.study.variants import variants

FIGURES = {"graph_breaks": 2, "recompilations": 0, "compile_ms": 12_300.0}


def test_compile_time_and_graph_breaks_are_columns_where_a_variant_compiles(study_builder: Any) -> None:
    study_builder.add("base", [30.0, 30.0])
    assert "Graph breaks" not in variants(study_builder.study())
    study_builder.add("compiled", [20.0, 20.0], compiled=FIGURES)
    page = variants(study_builder.study())
    assert all(heading in page for heading in ("Graph breaks", "Recompilations", "Compiling"))
    assert "12.3 s" in page or "12,300" in page


def test_estimates_say_what_compiling_changes_or_between_what_it_lies(study_builder: Any) -> None:
    an_estimate = {
        "gpu": "H100", "batch": None, "step_ms": [20, 30], "gpu_ms": [2, 3], "host_ms": [20, 29],
        "gpu_busy_pct": [7, 15], "limited_by": "launches", "launches": 9000, "syncs": 0,
        "peak_memory_bytes": 2**30, "fits": True, "largest_batch": None, "covered_pct": 99, "reason": None,
        "not_estimated": [], "assumed": [],
    }  # fmt: skip
    study_builder.add("base", [30.0, 30.0], estimates=[an_estimate])
    assert "With torch.compile" not in estimate(study_builder.study())
    pair = {"baseline": "uncompiled", "saved_ms": [10, 15], "times_as_fast": [1.5, 2.5], "faster_pct": 100}
    changes = {
        "graphs": 3, "step_ms": [20, 30], "gpu_ms": [2, 3], "launches": 4321, "launches_uncompiled": 8765,
        "difference": pair,
    }  # fmt: skip
    study_builder.add("compiled", [20.0, 20.0], estimates=[an_estimate | {"compiled": changes}])
    unknown = an_estimate | {"step_ms": None, "fused_ms": [11, 12], "uncompiled_ms": [27, 28], "reason": "not followed"}
    study_builder.add("not_followed", [20.0, 20.0], estimates=[unknown])
    page = with_plain_spaces(estimate(study_builder.study()))
    assert "With torch.compile" in page
    assert "3 graphs" in page
    assert "4,321" in page
    assert "8,765" in page
    assert "11 to 12 ms" in page
    assert "27 to 28 ms" in page
