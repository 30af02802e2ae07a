"""The section Communication of a study's page."""

import pytest

from documents import fill
from steptrace.documents.base import write
from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.report.study.communication import communication, communication_bars
from steptrace.report.study.model import load_study


def entry(**changes):
    """The keys of a variant that two ranks train; changes are those of what was traced."""
    communication = {
        "world_size": 2,
        "backend": "gloo",
        "parameters": 1_000_000,
        "parameter_bytes": 4_000_000,
        "bucket_bytes": [1_000_000] * 4,
        "bandwidths": [{"bytes": 4_000_000, "median_ns": 4_000_000, "bus_bytes_per_s": 1e9}],
        "expected_ns": 4_000_000,
        "simplified_ns": 4_000_000,
    }
    traced = {
        "measured_ns_per_step": 5e6,
        "exposed_ns_per_step": 1e6,
        "overlap": 0.8,
        "wait_ns_per_step": 0.5e6,
        "bytes_per_step": 4_000_000,
        "count_per_step": 4,
    }
    return {"communication": communication, "ranks": {"count": 2, "all_reduce": traced | changes}}


@pytest.fixture
def section(tmp_path):
    """The section of a study whose variants have these entries, None for one that trains alone."""

    def make(**entries):
        step = {"median": 10.0, "p95": 11.0, "low": 9.0, "high": 11.0, "runs": 1, "steps": 5}
        variants = [{"name": name, "status": "ok", "step_ms": step, **(found or {})} for name, found in entries.items()]
        made = fill(Comparison, {"study": "s", "baseline": next(iter(entries)), "scale": "cpu", "variants": variants})
        return communication(load_study(write(tmp_path / "comparison.json", made)))

    return make


def test_a_study_of_single_processes_has_no_section(section):
    assert section(alone=None) is None


def test_expected_measured_and_bandwidth_are_shown_with_their_definitions(section):
    html = section(ddp=entry(), alone=None)
    for text in (
        "2 ranks over gloo",
        "5.00 ms",
        "4.00 ms",
        "1.00 GB/s",
        "parameter bytes × 2(n−1)/n",
        "alone trains alone",
    ):
        assert text in html
    assert "<svg" in html


def test_what_stands_out_is_said_in_a_sentence(section):
    html = section(
        ddp=entry(),
        synced=entry(count_per_step=16),
        small=entry(measured_ns_per_step=20e6),
    )
    assert "<code>synced</code> reduces its gradients 4 times a step" in html
    assert "<code>small</code> has all-reduces under way for 5.00× the expected time, 80 % of it hidden" in html
    assert "<code>ddp</code> has" not in html


def test_nothing_measured_is_said_so_and_draws_nothing(section):
    html = section(ddp=entry() | {"ranks": None})
    assert "not measured" in html
    assert "<svg" not in html


def test_names_are_escaped():
    drawn = communication_bars([fill(VariantResult, {"name": "<b>", **entry()})])
    assert "<b>" not in drawn
    assert "&lt;b&gt;" in drawn
