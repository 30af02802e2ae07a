"""A run's files come back as they were written, and a damaged one says which file and why."""

import json
from pathlib import Path

import pandas as pd
import pytest

from documents import fill
from steptrace import run_folder
from steptrace.documents.run import InputOfRun, RunRecord, Status, StepOfRun
from steptrace.errors import RecordError, SchemaError
from steptrace.files import read_json, replace_atomically, write_json

STATUS = fill(Status, {"status": "out of memory", "exit_code": 1, "log_tail": ["step 3", "höher"], "wall_s": 1.5})
RUN = fill(
    RunRecord,
    {
        "study": "s",
        "environment": {"host": "node", "memory_bytes": 2**34},
        "nvml": {"utilisation_pct": 90.0},
        "traces": ["trace.json.gz"],
        "config": {"loss": {"_target_": "x.Y"}, "seeds": [0, 1]},
    },
)


def make_steps() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "phase": ["warmup", "timed", "profiled"],
            "step": [0, 1, 2],
            "step_ns": [30, 10, 20],
            "loader_wait_ns": [3, 1, 2],
            "loss": [1.0, None, 0.5],
        }
    )


def test_records_come_back_as_written(tmp_path: Path) -> None:
    run_folder.write_document(tmp_path / "run0", STATUS)
    run_folder.write_document(tmp_path / "run0", RUN)
    run_folder.write_rows(tmp_path / "run0", StepOfRun, make_steps())
    assert run_folder.read_status(tmp_path / "run0") == STATUS
    assert run_folder.read_run(tmp_path / "run0") == RUN
    pd.testing.assert_frame_equal(run_folder.read_steps(tmp_path / "run0"), make_steps())
    assert sorted(path.name for path in (tmp_path / "run0").iterdir()) == ["run.json", "status.json", "steps.parquet"]


def test_batches_of_the_input_pass_come_back_with_their_nulls(tmp_path: Path) -> None:
    nullable = dict.fromkeys(("worker", "pin_ns", "copy_ns"), "Int64")
    row = {"batch": 0, "worker": 1, "wait_ns": 5, "fetch_ns": 9, "collate_ns": 2}
    batches = pd.DataFrame([row | {"pin_ns": None, "copy_ns": 3}]).astype(nullable)
    run_folder.write_rows(tmp_path, InputOfRun, batches)
    pd.testing.assert_frame_equal(run_folder.read_rows(tmp_path, InputOfRun), batches)
    with pytest.raises(SchemaError, match="holds nulls"):
        run_folder.write_rows(tmp_path, InputOfRun, batches.assign(fetch_ns=pd.array([None], dtype="Int64")))
    with pytest.raises(SchemaError, match="missing columns"):
        run_folder.write_rows(tmp_path, InputOfRun, batches.drop(columns="wait_ns"))


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("status.json", run_folder.read_status),
        ("run.json", run_folder.read_run),
        ("steps.parquet", run_folder.read_steps),
    ],
)
@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"status": "ok"', b"\xff\xfe"])
def test_missing_and_damaged_files_are_named(tmp_path: Path, name: str, read: object, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RecordError) as caught:
        read(tmp_path)  # type: ignore[operator]
    assert caught.value.where == str(tmp_path / name)


def test_unknown_status_is_refused(tmp_path: Path) -> None:
    path = run_folder.write_document(tmp_path, STATUS)
    path.write_text(json.dumps(read_json(path) | {"status": "fine"}))
    with pytest.raises(RecordError, match=r"'fine'.*\$\.status"):
        run_folder.read_status(tmp_path)


def test_lists_of_numbers_take_one_line_and_come_back(tmp_path: Path) -> None:
    value = {"a": [1, -2.5, 1e-7, 1e300], "b": [[1, 2], []], "c": ["1", 2], "d": [1, None], "e": "[\n 1,\n 2\n]"}
    path = write_json(tmp_path / "x.json", value)
    assert read_json(path) == value
    text = path.read_text()
    assert '"a": [1, -2.5, 1e-07, 1e+300],' in text
    assert "    [1, 2],\n" in text
    assert '"1",\n' in text


def test_nan_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be written as JSON"):
        write_json(tmp_path / "x.json", {"a": float("nan")})


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = write_json(tmp_path / "x.json", 1)

    def fail_half_way(temporary: Path) -> None:
        temporary.write_text("ha")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace_atomically(path, fail_half_way)
    assert read_json(path) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]
