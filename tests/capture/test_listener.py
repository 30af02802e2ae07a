"""Inside the program: steps while it can be captured, what is refused, and that nothing reaches the program."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from steptrace.documents.run import capture_of
from steptrace.engine.recording import RecordingSettings, Request
from steptrace.errors import CaptureError
from steptrace.files import user_folder
from steptrace.launch import capture as capture_mode
from steptrace.launch.capture import Listener, ListeningProcess, processes

SHORT = RecordingSettings(steps=1, warmup=1, stacks=False, shapes=False, memory=False)


@pytest.fixture(autouse=True)
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The control folder of this test, looked into at each step."""
    monkeypatch.setenv("STEPTRACE_FOLDER", str(tmp_path / "user"))
    monkeypatch.setattr(capture_mode, "_LOOK_NS", 0)
    return user_folder() / "capture"


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[Listener]:
    listener = Listener(str(tmp_path / "captures"))
    _train(listener, 1)
    yield listener
    listener.close()


@pytest.fixture
def entry(capture: Listener) -> ListeningProcess:  # noqa: ARG001 (made by then)
    (process,) = processes()
    return process


def _train(capture: Listener, steps: int) -> None:
    for _ in range(steps):
        torch.ones(4).sum()
        capture.step()


def _ask(entry: ListeningProcess, folder: Path, name: str = "1", settings: RecordingSettings = SHORT) -> None:
    entry.post(Request(name, str(folder), settings))


def _record(folder: Path) -> SimpleNamespace:
    return SimpleNamespace(**json.loads((folder / "capture.json").read_text()))


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_request_is_answered_step_by_step(capture, entry, tmp_path):
    assert (entry.pid, entry.steps, entry.recording) == (os.getpid(), 1, False)
    for name in ("a", "b"):
        _ask(entry, tmp_path / name, name=name)
        _train(capture, 1)
        assert processes()[0].recording
        _train(capture, 2)
        assert _record(tmp_path / name).state == "recorded"
        assert _names(tmp_path / name) == ["capture.json", "trace.json.gz"]
        assert not processes()[0].recording
    assert processes()[0].steps == 7


def test_a_command_line_that_the_program_has_changed_may_hold_anything(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", [Path("train.py"), 3])
    listener = Listener(str(tmp_path))
    listener.step()
    assert [process.script for process in processes()] == ["train.py 3"]
    listener.close()


def test_one_capture_at_a_time(capture, entry, tmp_path, caplog):
    _ask(entry, tmp_path / "a", name="1")
    _train(capture, 1)
    _ask(entry, tmp_path / "b", name="2")
    _train(capture, 3)
    assert [_record(tmp_path / name).state for name in "ab"] == ["recorded", "refused"]
    assert "under way" in caplog.text


def test_an_earlier_trace_is_not_replaced(capture, entry, tmp_path, caplog):
    _ask(entry, tmp_path / "out")
    _train(capture, 3)
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    _ask(entry, tmp_path / "out", name="2")
    _train(capture, 3)
    assert "a trace exists already" in caplog.text
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_trace_that_cannot_be_written_is_an_error_and_training_goes_on(capture, entry, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(torch.profiler.profile, "export_chrome_trace", fail)
        _ask(entry, tmp_path / "out")
        _train(capture, 5)
    answer = _record(tmp_path / "out")
    assert (answer.state, answer.message, answer.trace) == ("failed", "OSError: disk full", None)
    assert _names(tmp_path / "out") == ["capture.json"]
    _ask(entry, tmp_path / "again", name="2")
    _train(capture, 3)
    assert _record(tmp_path / "again").state == "recorded"


@pytest.mark.parametrize("kept", ["no file", 0.0, 0.5, 0.99])
def test_a_trace_without_its_end_is_not_taken_for_one(capture, entry, tmp_path, monkeypatch, kept):
    """Where the disk is full PyTorch's writer stops, and raises nothing."""
    export = torch.profiler.profile.export_chrome_trace

    def cut(profile, path):
        export(profile, path)
        content = Path(path).read_bytes()
        Path(path).unlink()
        if kept != "no file":  # a share of it: its length differs between versions and runs
            Path(path).write_bytes(content[: int(len(content) * kept)])

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", cut)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "no such folder"))  # it is written where it is to lie
    _ask(entry, tmp_path / "out")
    _train(capture, 3)
    answer = _record(tmp_path / "out")
    assert answer.state == "failed"
    assert "is the disk full?" in answer.message
    assert _names(tmp_path / "out") == ["capture.json"]


def test_a_capture_is_refused_if_the_programs_profiler_would_start_within_it(capture, entry, tmp_path):
    schedule = torch.profiler.schedule(wait=3, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as own:
        _ask(entry, tmp_path / "out", settings=RecordingSettings(steps=2, warmup=2))
        for _ in range(6):
            _train(capture, 1)
            own.step()
        assert "records within the next 4 steps" in _record(tmp_path / "out").message
        _ask(entry, tmp_path / "again", name="2")  # its one cycle is over
        _train(capture, 3)
        assert _record(tmp_path / "again").state == "recorded"


@pytest.mark.skipif(torch.__version__ < "2.12", reason="PyTorch 2.11 starts no profiler while another one warms up")
def test_a_profiler_of_the_program_started_in_the_warm_up_ends_the_capture(capture, entry, tmp_path):
    _ask(entry, tmp_path / "out")
    _train(capture, 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        _train(capture, 3)
    assert _record(tmp_path / "out").message == "another profiler was started during the warm-up"
    assert any(event.key == "aten::sum" for event in own.key_averages())


def test_closing_in_the_warm_up_leaves_the_profiler_usable(capture, entry, tmp_path):
    _ask(entry, tmp_path / "out")
    _train(capture, 1)
    capture.close()
    assert "before a step was recorded" in _record(tmp_path / "out").message
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        torch.ones(4).sum()
    assert any(event.key == "aten::sum" for event in own.key_averages())
    assert processes() == []


def test_a_request_that_nobody_takes_is_answered_at_the_end(capture, entry, tmp_path):
    _ask(entry, tmp_path / "out")
    capture.close()
    assert _record(tmp_path / "out").message == "the training has ended"


@pytest.mark.parametrize("how", ["open", "file"])
def test_without_a_control_folder_a_program_goes_on(tmp_path, control, caplog, how):
    if how == "open":
        control.mkdir(mode=0o755)
    else:
        control.write_text("")
    listener = Listener(str(tmp_path / "captures"))
    _train(listener, 3)
    listener.close()
    assert caplog.text.count("`steptrace capture` cannot reach this process") == 1


def test_a_control_folder_that_vanishes_in_a_capture_is_survived(capture, entry, control, tmp_path, caplog):
    _ask(entry, tmp_path / "out")
    _train(capture, 1)
    shutil.rmtree(control)
    _train(capture, 3)
    assert _record(tmp_path / "out").state == "recorded"
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        b'{"unprofiled": true}',
        b'{"unprofiled": "x"}',
        b'{"unprofiled": {"median_ns": "abc", "step_ns": [1], "load_average": 0.5, "cpus": 2}}',
        b'{"unprofiled": {"median_ns": 5}}',
        b'{"unprofiled": "\xff"}',
        b"[]",
    ],
)
def test_a_foreign_capture_json_beside_a_trace_says_nothing(tmp_path, content):
    (tmp_path / "capture.json").write_bytes(content)
    assert capture_of(tmp_path / "trace.json.gz") is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_end_what_its_parent_does(capture, entry):
    child = os.fork()
    if child == 0:
        capture.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert processes() == [entry]


def test_the_record_has_the_times_of_unprofiled_steps_before_it(capture, entry, tmp_path, monkeypatch):
    now = [capture._ends[-1]]
    monkeypatch.setattr(capture_mode, "perf_counter_ns", lambda: now[0])

    def train(steps: int, step_ns: int) -> None:
        for _ in range(steps):
            now[0] += step_ns
            _train(capture, 1)

    train(100, 2_000_000)
    train(4, 3_000_000)
    _ask(entry, tmp_path / "one", name="1")
    train(3, 50_000_000)  # the request is seen after the first of them, which is still unprofiled
    unprofiled = _record(tmp_path / "one").unprofiled
    assert unprofiled["step_ns"] == [2_000_000] * 59 + [3_000_000] * 4 + [50_000_000]
    assert unprofiled["median_ns"] == 2_000_000
    assert _record(tmp_path / "one").steps == {"first": 107, "last": 107, "count": 1}
    train(5, 7_000_000)  # profiled steps are never among them
    _ask(entry, tmp_path / "two", name="2")
    train(3, 50_000_000)
    assert _record(tmp_path / "two").unprofiled["step_ns"] == [7_000_000] * 4 + [50_000_000]


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"warmup": -1}])
def test_settings_are_checked(wrong):
    with pytest.raises(CaptureError, match=next(iter(wrong))) as caught:
        RecordingSettings(**wrong)
    assert caught.value.expected


@pytest.mark.parametrize(
    "request_",
    [
        {"id": 1},
        {"folder": 7},
        {"folder": None},
        {"settings": 3},
        {"settings": {"steps": "3"}},
        {"settings": {"steps": 1.5}},
        {"settings": {"steps": True}},
        {"settings": {"steps": 0}},
        {"settings": {"steps": 10**12}},
        {"settings": {"warmup": [1]}},
        {"settings": {"stacks": "yes"}},
        {"settings": {"unknown": 1}},
        {"unknown": 1},
    ],
)
def test_a_request_with_a_wrong_type_is_refused_and_the_next_one_answered(capture, entry, tmp_path, request_):
    whole = {"id": "1", "folder": str(tmp_path / "a"), "settings": asdict(SHORT)}
    (entry.path / "request.json").write_text(json.dumps(whole | request_))
    _train(capture, 4)
    if {"id", "folder"}.isdisjoint(request_):
        assert _record(tmp_path / "a").state == "refused"
    _ask(entry, tmp_path / "b", name="2")
    _train(capture, 3)
    assert _record(tmp_path / "b").state == "recorded"


@pytest.mark.parametrize("content", ["{", "[]", "3", '{"id": "1"}', "\ud800", ""])
def test_a_request_that_is_none_is_no_obstacle(capture, entry, tmp_path, content):
    (entry.path / "request.json").write_text(content, errors="surrogatepass")
    _train(capture, 2)
    _ask(entry, tmp_path / "b", name="2")
    _train(capture, 3)
    assert _record(tmp_path / "b").state == "recorded"


def test_a_listing_with_wrong_types_is_passed_over(capture, entry):  # noqa: ARG001
    file = entry.path / "process.json"
    for key, value in (("pid", "1"), ("steps", None), ("since", "now"), ("recording", 1)):
        file.write_text(json.dumps(asdict(entry) | {key: value}))
        assert processes() == []
