"""The wait for data: unprofiled, the part of it with the GPU idle, and the parts of loading a batch."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from documents import compare
from steptrace.documents.run import InputOfRun
from steptrace.record import write_rows

MS = 1_000_000


def batches(**ns: Any) -> pd.DataFrame:
    fields = {"worker": None, "wait_ns": 1, "fetch_ns": 9 * MS, "collate_ns": MS}
    rows = [{"batch": i, **fields, "pin_ns": None, "copy_ns": None, **ns} for i in range(3)]
    return pd.DataFrame(rows).astype(dict.fromkeys(("worker", "pin_ns", "copy_ns"), "Int64"))


@pytest.fixture
def input_of(folder: Any) -> Callable[[str], Any]:
    def find(variant: str) -> Any:
        entry = next(item for item in compare(folder.path)["variants"] if item["name"] == variant)
        return entry["input"]

    return find


def test_without_a_gpu_all_of_the_unprofiled_wait_counts(folder, input_of, trace_of) -> None:
    folder.make_study([{"name": "base"}, {"name": "missing"}])
    summary = trace_of(gpu={"activities": 0}, input={"wait_ns": 9 * MS, "gpu_idle_wait_ns": None, "share": 0.9})
    folder.add_runs("base", [20, 20, 20], wait_ms=5.0, summary=summary)
    figures = input_of("base")
    assert (figures["wait_ms"], figures["counted_ms"], figures["idle_part"]) == (5, 5, None)
    assert figures["share"] == pytest.approx(figures["counted_ms"] / figures["step_ms"], rel=0.01)
    assert figures["share"] == pytest.approx(0.25, rel=0.01)  # not the profiled step's, which a profiler slowed
    assert (figures["verdict"], figures["breakdown_ms"]) == ("high", None)
    assert input_of("missing") is None


def test_with_a_gpu_the_part_with_it_idle_counts(folder, input_of, trace_of) -> None:
    folder.make_study([{"name": "base"}, {"name": "without_input"}])
    summary = trace_of(input={"wait_ns": 8 * MS, "gpu_idle_wait_ns": 2 * MS, "share": 0.1})
    folder.add_runs("base", [20, 20, 20], wait_ms=5.0, device="cuda", summary=summary)
    folder.add_runs("without_input", [20, 20, 20], wait_ms=5.0, device="cuda", summary=trace_of())
    figures = input_of("base")
    assert (figures["wait_ms"], figures["counted_ms"], figures["idle_part"]) == (5, 1.25, 0.25)
    assert figures["share"] == pytest.approx(0.0625, rel=0.01)
    assert figures["verdict"] == "moderate"
    figures = input_of("without_input")  # a trace that does not say
    assert (figures["wait_ms"], figures["counted_ms"], figures["share"], figures["verdict"]) == (5, None, None, None)


def test_the_parts_of_loading_are_medians_and_do_not_overlap(folder, input_of) -> None:
    folder.make_study([{"name": "base"}], repeats=3)
    for repeat in range(3):
        run_dir = folder.add_run("base", repeat, [20] * 20)
        write_rows(run_dir, InputOfRun, batches(fetch_ns=(8 + repeat) * MS, pin_ns=3 * MS if repeat else None))
    assert input_of("base")["breakdown_ms"] == {"fetch": 9, "collate": 1, "pin": 3, "copy": None}


def test_a_pass_that_cannot_be_read_is_as_if_it_had_not_been(folder, input_of) -> None:
    folder.make_study([{"name": "base"}], repeats=1)
    (folder.add_run("base", 0, [20] * 20) / "input.parquet").write_bytes(b"no table")
    assert input_of("base")["breakdown_ms"] is None
