"""What a measured program left, made into the files of a run."""

from pathlib import Path

from steptrace.launch.result import _move_traces
from steptrace.launch.start import Launched


def test_a_trace_without_its_record_is_kept_and_no_earlier_record_stays_beside_it(tmp_path: Path) -> None:
    left, run = tmp_path / "left", tmp_path / "run"
    for folder, name in ((left, "trace.json.gz"), (left, "rank1.trace.json.gz"), (left, "rank1.capture.json")):
        folder.mkdir(exist_ok=True)
        (folder / name).touch()
    run.mkdir()
    (run / "capture.json").touch()
    ranks = ({"rank": 0}, {"rank": 1, "trace": {"file": "rank1.trace.json.gz"}})
    launched = Launched(exit_code=0, stopped=None, ranks=ranks, out=left, started=2, failures=())
    assert _move_traces(launched, run) == ("trace.json.gz", "trace.rank1.json.gz")
    assert sorted(file.name for file in run.iterdir()) == [
        "capture.rank1.json",
        "trace.json.gz",
        "trace.rank1.json.gz",
    ]
