"""Columns declared once: reduced over runs, joined by their keys, and read by tables and pages."""

import subprocess
import sys

import pytest
from msgspec.structs import replace

from documents import fill
from recorded import needs_traces, trace_of
from steptrace.analysis import summarize_trace
from steptrace.documents.base import columns_of, keys_of, shown_columns, subjects_of
from steptrace.documents.rows import Side, by_key, join, over_runs
from steptrace.documents.streams import Queue
from steptrace.documents.summary import TraceSummary
from steptrace.documents.syncs import SyncSite


def queue(stream: int, **figures: float | None) -> Queue:
    return fill(Queue, {"device": 0, "stream": stream, "activities": 10, **figures})


def site(line: int, **figures: object) -> SyncSite:
    return fill(
        SyncSite, {"file": "a.py", "line": line, "kind": "d2h_copy", "count": 4, "blocked_ns": 4_000, **figures}
    )


def test_a_column_says_what_it_is() -> None:
    columns = {one.name: one for one in columns_of(Queue)}
    assert [one.name for one in keys_of(Queue)] == ["device", "stream"]
    assert columns["device"].local
    assert (columns["mean"].dtype, columns["mean"].nullable) == ("float64", True)
    assert (columns["empty_ns"].unit, columns["empty_ns"].total) == ("ns", True)
    assert "code" not in {one.name for one in shown_columns(SyncSite)}
    assert all(one.meaning.endswith(".") for one in columns.values())


def test_every_subject_has_a_heading_and_all_but_one_say_why_they_are_absent() -> None:
    subjects = subjects_of(TraceSummary)
    assert {"syncs", "queues"} <= {one.name for one in subjects}
    assert len({one.heading for one in subjects}) == len(subjects)
    assert [one.name for one in subjects if not one.absent] == ["step_kinds"]  # no loss where steps are alike
    assert not any(one.absent.endswith(".") for one in subjects)


def test_rows_of_runs_become_medians_matched_by_their_keys() -> None:
    runs = [
        fill(TraceSummary, {"queues": [{"stream": 7, "activities": n, "mean": mean}, {"stream": 9, "activities": 1}]})
        for n, mean in ((10, 1.0), (13, 2.0))
    ]
    runs.append(fill(TraceSummary, {"queues": [{"stream": 7, "activities": 20, "mean": None}]}))
    first, second = over_runs(runs).queues
    assert (first.stream, first.activities, first.mean) == (7, 13, None)
    assert (second.stream, second.activities) == (9, 1)  # two of three runs have it


def test_a_row_that_most_runs_lack_is_left_out() -> None:
    runs = [fill(TraceSummary, {"queues": rows}) for rows in ([{"stream": 9, "activities": 5}], [], [])]
    assert over_runs(runs).queues == ()


def test_fields_that_are_no_figure_are_the_first_runs_or_null() -> None:
    runs = [fill(TraceSummary, {"path": path, "device": device}) for path, device in (("a", 0), ("b", 1))]
    assert (over_runs(runs).path, over_runs(runs).device) == ("a", None)


@needs_traces
@pytest.mark.parametrize("name", ["alexnet_cuda_sync.json.gz", "cpu_only.json.gz", "h100_vit.json.gz"])
def test_equal_runs_give_back_every_field(name: str) -> None:
    summary = summarize_trace(trace_of(name))
    assert over_runs([summary] * 3) == summary


def test_sides_are_joined_by_keys_that_both_traces_can_share() -> None:
    a = Side([site(7), site(30, kind="stream", blocked_ns=100)], steps=2)
    b = Side([site(9, count=2, blocked_ns=1_000)], steps=1)
    first, second = join(a, b)
    assert first.figures["blocked_ns"] == (2_000, 1_000)  # line 7 is line 9 now: code moves
    assert first.figures["count"] == (2, 2)
    assert second.b is None
    assert second.figures["blocked_ns"] == (50, 0)
    assert first.differs
    assert join(a, Side([], steps=0))[0].figures["blocked_ns"] == (2_000, 0)
    assert join(Side([], 0), Side([], 0)) == []


def test_a_trace_does_not_differ_from_itself_and_what_is_not_measured_is_not_compared() -> None:
    side = Side([queue(7, mean=None)], steps=3)
    (change,) = join(side, side)
    assert not change.differs
    assert "exposed_idle_ns" not in join(Side([site(7, exposed_idle_ns=None)], 1), Side([site(7)], 1))[0].figures


def test_rows_are_found_by_their_keys() -> None:
    rows = [queue(7), queue(9)]
    assert by_key(rows) == {(0, 7): rows[0], (0, 9): rows[1]}
    assert replace(rows[0], stream=9) == rows[1]


def test_reading_documents_takes_neither_pandas_nor_numpy() -> None:
    code = (
        "import sys, steptrace.documents.summary, steptrace.documents.rows; print({'pandas', 'numpy'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
