"""The section Communication of a study's page."""

import pytest

from documents import fill
from steptrace.documents.base import write
from steptrace.documents.comparison import CommunicationOfVariant, Comparison
from steptrace.report.study.communication import communication, communication_bars
from steptrace.report.study.model import load_study


def entry(**changes):
    figures = {
        "world_size": 2,
        "backend": "gloo",
        "accumulate": 1,
        "parameters": 1_000_000,
        "parameter_bytes": 4_000_000,
        "buckets": 4,
        "bandwidths": [{"bytes": 4_000_000, "ms": 4.0, "bus_bytes_per_s": 1e9}],
        "expected_ms": 4.0,
        "simplified_ms": 4.0,
        "measured_ms": 5.0,
        "measured_over_expected": 1.25,
        "exposed_ms": 1.0,
        "overlap": 0.8,
        "wait_ms": 0.5,
        "bytes_per_step": 4_000_000,
        "all_reduces_per_step": 4,
        "straggler": None,
    }
    return figures | changes


@pytest.fixture
def section(tmp_path):
    """The section of a study whose variants have these entries, None for one that trains alone."""

    def make(**entries):
        step = {"median": 10.0, "p95": 11.0, "low": 9.0, "high": 11.0, "runs": 1, "steps": 5}
        variants = [
            {"name": name, "status": "ok", "step_ms": step, "communication": found} for name, found in entries.items()
        ]
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
        synced=entry(accumulate=4, all_reduces_per_step=16),
        small=entry(measured_ms=20.0, measured_over_expected=5.0),
    )
    assert "<code>synced</code> reduces its gradients 4 times a step" in html
    assert "<code>small</code> has all-reduces under way for 5.00× the expected time, 80 % of it hidden" in html
    assert "<code>ddp</code> has" not in html


def test_nothing_measured_is_said_so_and_draws_nothing(section):
    nothing = dict.fromkeys(
        ("measured_ms", "measured_over_expected", "exposed_ms", "overlap", "wait_ms", "bytes_per_step", "buckets")
    )
    found = entry(**nothing, all_reduces_per_step=None)
    assert communication_bars({"ddp": fill(CommunicationOfVariant, found)}) is None
    html = section(ddp=found)
    assert "not measured" in html
    assert "<svg" not in html


def test_names_are_escaped():
    drawn = communication_bars({"<b>": fill(CommunicationOfVariant, entry())})
    assert "<b>" not in drawn
    assert "&lt;b&gt;" in drawn
