"""Two results of `steptrace run`, or two variants, side by side: what was measured, predicted and estimated."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from builders import TraceBuilder, training_step
from documents import fill
from shown import with_plain_spaces
from steptrace.cli import main
from steptrace.diff import diff, read_sides
from steptrace.documents.base import read
from steptrace.documents.diff import Diff, MeasuredDiff, Pair
from steptrace.documents.prediction import PredictedStep
from steptrace.documents.run import RunRecord, StepOfRun
from steptrace.report.diff import in_words, measured_rows, page_html
from steptrace.run_folder import write_document, write_rows

MS = 1_000_000
TRACE = "trace.json.gz"


def site(line: int, by_step: Sequence[int]) -> dict[str, Any]:
    return {
        "file": "train.py", "line": line, "function": "main", "op": "aten::item", "label": None, "phase": "other",
        "code": "loss.item()", "kind": "d2h_copy", "reason": "the value is needed",
        "count": sum(by_step) / len(by_step), "by_step": by_step,
    }  # fmt: skip


#: A product of two matrices, 4 times in 4 steps.
PRODUCT = {
    "name": "aten.mm.default",
    "inputs": [{"shape": [512, 512], "strides": [512, 1], "dtype": "float32"}] * 2,
    "outputs": [{"shape": [512, 512], "strides": [512, 1], "dtype": "float32"}],
    "is_view": False, "flop": 2 * 512**3, "calls": 4, "phase": "forward", "file": "train.py", "line": 3,
}  # fmt: skip


def prediction(*sites: dict[str, Any], **changes: Any) -> PredictedStep:
    by_step = [sum(counts) for counts in zip(*(site["by_step"] for site in sites), strict=True)]
    part = {
        "total": sum(by_step) / len(by_step), "sites": sites, "operators": 1, "by_step": by_step,
        "peak_memory_bytes": 2**20, "devices": 1,
        "followed": {"steps": 4, "operator_calls": [PRODUCT], "queue": [0, 0, 0, 0]}, **changes,
    }  # fmt: skip
    return fill(PredictedStep, part)


def make_run(
    folder: Path,
    *runs_ms: Sequence[float],
    trace: TraceBuilder | None = None,
    wait_ms: float | None = None,
    **record: Any,
) -> Path:
    """The folder of `steptrace run`, with a run for each list of timed steps."""
    for number, steps_ms in enumerate(runs_ms):
        run_dir = folder / f"run{number}"
        run_dir.mkdir(parents=True)
        if trace is not None:
            trace.write(run_dir / TRACE)
        document = {"device": "cpu", "world_size": 1, "traces": [] if trace is None else [TRACE], **record}
        write_document(run_dir, fill(RunRecord, document))
        wait = pd.array([None if wait_ms is None else round(wait_ms * MS)] * len(steps_ms), dtype="Int64")
        table = {
            "phase": ["timed"] * len(steps_ms),
            "step": range(len(steps_ms)),
            "step_ns": (np.array(steps_ms) * MS).astype(np.int64),
            "loader_wait_ns": wait,
            "loss": 1.0,
        }
        write_rows(run_dir, StepOfRun, pd.DataFrame(table))
    return folder


def measured(a: Path, b: Path, gpus: Sequence[str] = ()) -> MeasuredDiff:
    document = diff(*read_sides([a], [b]), gpus)
    assert document.measured is not None
    return document.measured


def test_unprofiled_step_times_stand_side_by_side_without_a_verdict(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", [10, 11, 12], wait_ms=2)
    b = make_run(tmp_path / "b", [5, 5.5, 6])
    both = measured(a, b)
    assert both.a is not None
    assert both.b is not None
    assert (both.statistic, both.a.step_ns, both.b.step_ns, both.ratio) == ("median", 11 * MS, 5.5 * MS, 2)
    assert (both.a.loader_wait_ns, both.b.loader_wait_ns) == (2 * MS, None)
    assert (both.a.runs, both.a.steps) == (1, 3)
    document = diff(*read_sides([a], [b]))
    assert (document.step_ns, document.kernels, document.operators) == (Pair(a=None, b=None), (), ())
    assert set(document.not_measured) == {"kernels", "syncs", "lines", "operators"}
    words = in_words(document)
    assert "11.0 ms → 5.50 ms" in words
    assert not any(word in words for word in ("faster", "slower"))
    assert "11.0 ms → 5.50 ms" in with_plain_spaces(page_html(document))


def test_where_long_steps_come_back_both_sides_are_means(tmp_path: Path) -> None:
    both = measured(make_run(tmp_path / "a", [10, 10, 40]), make_run(tmp_path / "b", [10, 11, 12]))
    assert both.a is not None
    assert both.b is not None
    assert (both.statistic, both.a.step_ns, both.b.step_ns) == ("mean", 20 * MS, 11 * MS)


def test_a_run_without_a_timed_step_has_no_step_time(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a", []), make_run(tmp_path / "b", [10, 11, 12])
    for sides in ((a, b), (b, a), (a, a)):
        both = measured(*sides)
        assert both.a is not None
        assert both.b is not None
        assert both.ratio is None
        lengths = [None if side == a else 11 * MS for side in sides]
        assert [both.a.step_ns, both.b.step_ns] == lengths
        assert "nan" not in in_words(diff(*read_sides([sides[0]], [sides[1]]))).lower()
    half = measured(make_run(tmp_path / "half", [], [10, 20, 30]), b)
    assert half.a is not None
    assert (half.a.step_ns, half.a.steps) == (20 * MS, 3)


def test_of_several_runs_the_middle_one_counts(tmp_path: Path) -> None:
    both = measured(make_run(tmp_path / "a", [10] * 3, [30] * 3, [12] * 3), make_run(tmp_path / "b", [10] * 3))
    assert both.a is not None
    assert (both.a.runs, both.a.step_ns) == (3, 12 * MS)


def test_predicted_syncs_are_compared_by_place(tmp_path: Path) -> None:
    a, b = (make_run(tmp_path / name, [10, 11]) for name in "ab")
    write_document(a, prediction(site(7, [1, 1]), site(9, [1, 1])))
    write_document(b, prediction(site(8, [1, 1])))
    both = measured(a, b)
    assert both.a is not None
    assert both.b is not None
    assert (both.a.predicted_syncs_per_step, both.b.predicted_syncs_per_step) == (2, 1)
    assert both.predicted_syncs is not None
    changes = [(s.line, s.baseline_count_per_step, s.variant_count_per_step) for s in both.predicted_syncs.sites]
    assert changes == [(9, 1, 0), (7, 1, 1)]  # line 7 is line 8 now


def test_a_sync_of_some_steps_is_no_rate(tmp_path: Path) -> None:
    a, b = (make_run(tmp_path / name, [10, 11]) for name in "ab")
    write_document(a, prediction(site(7, [1] * 8)))
    write_document(b, prediction(site(7, [1, 0, 0, 0] * 2)))
    both = measured(a, b)
    assert both.predicted_syncs is not None
    (change,) = both.predicted_syncs.sites
    assert change.variant_count_per_step == 0.25
    assert change.baseline_steps is None
    assert change.variant_steps is not None
    steps = change.variant_steps
    assert (steps.in_steps, steps.of_steps, steps.every) == (2, 8, 4)
    assert "1 every 4 steps" in in_words(diff(*read_sides([a], [b])))


@pytest.mark.parametrize(
    ("of_runs", "asked", "expected"),
    [([], [], ["H100"]), (["L4"], [], ["L4"]), (["L4"], ["A100-80"], ["A100-80"])],
)
def test_both_are_estimated_on_the_same_gpus(
    tmp_path: Path, of_runs: list[str], asked: list[str], expected: list[str]
) -> None:
    a, b = (make_run(tmp_path / name, [10, 11]) for name in "ab")
    write_document(a, prediction(site(7, [1, 1]), gpus=of_runs))
    write_document(b, prediction(site(7, [1, 1])))
    both = measured(a, b, asked)
    for side in (both.a, both.b):
        assert side is not None
        assert [estimate.gpu for estimate in side.estimates] == expected
        assert side.estimates[0].step_ms is not None


def test_a_run_against_a_trace_has_measurements_on_one_side(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for index in range(3):
        training_step(builder, index, index * 1_100_000)
    run = make_run(tmp_path / "a", [10, 11], trace=builder)
    document = diff(*read_sides([run], [builder.write(tmp_path / "b.json")]))
    assert document.measured is not None
    assert document.measured.b is None
    assert document.measured.predicted_syncs is None
    assert document.kernels == ()  # the traces are the same
    assert any("10.5 ms → not measured" in words for _, words in measured_rows(document))


def test_measured_syncs_are_those_of_the_traces(tmp_path: Path) -> None:
    sides = []
    for name, sync in (("a", True), ("b", False)):
        builder = TraceBuilder()
        for index in range(3):
            training_step(builder, index, index * 1_100_000, sync=sync)
        sides.append(make_run(tmp_path / name, [10, 11], trace=builder, device="cuda"))
    both = measured(*sides)
    assert both.a is not None
    assert both.b is not None
    assert (both.a.measured_syncs_per_step, both.b.measured_syncs_per_step) == (1, 0)


def test_what_differs_between_the_machines_is_named(tmp_path: Path) -> None:
    a, b = (make_run(tmp_path / t, [10, 11], environment={"torch": t, "host": t}) for t in ("2.12.0", "2.13.0"))
    assert measured(a, b).environment == ("torch",)


def test_traces_alone_have_no_measurements(tmp_path: Path) -> None:
    builder = TraceBuilder()
    training_step(builder)
    path = builder.write(tmp_path / "a.json")
    assert diff(*read_sides([path], [path])).measured is None


def test_the_command_writes_and_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        write_document(make_run(tmp_path / name, [10, 11]), prediction(site(7, [1, 1])))
    out = tmp_path / "out"
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--gpu", "L4", "--out", str(out)]) == 0
    assert "Step on L4, estimated" in capsys.readouterr().out
    both = read(out / "diff.json", Diff).measured
    assert both is not None
    assert both.a is not None
    assert [load["gpu"] for load in json.loads((out / "diff.json").read_text())["measured"]["a"]["estimates"]] == ["L4"]


def test_a_damaged_run_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (make_run(tmp_path / name, [10, 11]) for name in "ab")
    (b / "run0" / "run.json").write_text('{"schema_version": 99}')
    assert main(["diff", str(a), str(b), "--out", str(tmp_path / "out")]) == 2
    assert str(b / "run0" / "run.json") in capsys.readouterr().err
    assert not (tmp_path / "out" / "diff.json").exists()
