"""The training's side: what a step does, what is refused, and that nothing reaches the training."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from steptrace.capture import Capture, Settings, job
from steptrace.capture.control import Process, processes
from steptrace.documents.run import capture_of
from steptrace.errors import CaptureError
from steptrace.launch.listen import listen
from steptrace.recording import Recording, Request

SHORT = Settings(steps=1, warmup=1, stacks=False, shapes=False, memory=False)


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[Capture]:
    with Capture(tmp_path / "captures", settings=SHORT) as made:
        yield made


@pytest.fixture(autouse=True)
def look_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_LOOK_NS", 0)


@pytest.fixture
def entry(capture: Capture, control: Path) -> Process:  # noqa: ARG001 (made by then)
    (found,) = processes(control)
    return found


def _train(capture: Capture, steps: int) -> None:
    for _ in range(steps):
        torch.ones(4).sum()
        capture.step()


def _ask(entry: Process, folder: Path, start: int | None = None, name: str = "1", settings: Settings = SHORT) -> None:
    entry.post(Request(name, str(folder), settings, start))


def _record(folder: Path) -> SimpleNamespace:
    return SimpleNamespace(**json.loads((folder / "capture.json").read_text()))


def _said(entry: Process) -> Process:
    """What the process has said last."""
    return next(found for found in processes(entry.path.parent) if found.path == entry.path)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_steps_are_counted_where_the_command_sees_them(capture, entry):
    _train(capture, 3)
    assert _said(entry).steps == 3
    assert _said(entry).pid == os.getpid()


def test_a_request_is_answered_step_by_step(capture, entry, tmp_path):
    _train(capture, 2)
    _ask(entry, tmp_path / "out")
    _train(capture, 1)
    assert _said(entry).recording
    _train(capture, 2)
    record = _record(tmp_path / "out")
    assert (record.state, record.message, record.trace) == ("recorded", "steps 4 to 4", "trace.json.gz")
    assert _names(tmp_path / "out") == ["capture.json", "trace.json.gz"]


def test_several_captures_without_warm_up_are_recorded(capture, entry, tmp_path):
    for number in range(3):
        _ask(entry, tmp_path / str(number), name=str(number), settings=Settings(steps=2, warmup=0))
        _train(capture, 4)
        assert _record(tmp_path / str(number)).state == "recorded"


def test_ranks_begin_at_the_step_agreed_on(capture, entry, tmp_path):
    _ask(entry, tmp_path / "out", start=4)
    _train(capture, 3)
    assert not (tmp_path / "out").exists()
    _train(capture, 3)
    assert _record(tmp_path / "out").state == "recorded"
    assert json.loads((tmp_path / "out" / "capture.json").read_text())["steps"]["first"] == 5


def test_a_step_that_is_over_is_refused(capture, entry, tmp_path):
    _train(capture, 5)
    _ask(entry, tmp_path / "out", start=5)
    _train(capture, 1)
    answer = _record(tmp_path / "out")
    assert (answer.state, answer.message) == (
        "refused", "step 5, which was agreed on, was over when the request was seen",
    )  # fmt: skip
    assert _names(tmp_path / "out") == ["capture.json"]


def test_one_capture_at_a_time(capture, entry, tmp_path, caplog):
    _ask(entry, tmp_path / "a", name="1")
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
    assert "there is a trace already" in caplog.text
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_trace_that_cannot_be_written_is_told_and_training_goes_on(capture, entry, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", fail)
    _ask(entry, tmp_path / "out")
    _train(capture, 5)
    answer = _record(tmp_path / "out")
    assert (answer.state, answer.message, answer.trace) == ("failed", "OSError: disk full", None)
    assert _names(tmp_path / "out") == ["capture.json"]
    monkeypatch.undo()
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


def test_a_folder_that_cannot_be_made_is_logged(capture, entry, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    _ask(entry, tmp_path / "file" / "out")
    _train(capture, 3)
    assert "capture failed" in caplog.text
    assert not _said(entry).recording


def test_a_capture_is_refused_if_the_programs_profiler_would_start_within_it(capture, entry, tmp_path):
    schedule = torch.profiler.schedule(wait=3, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as own:
        _ask(entry, tmp_path / "out", settings=Settings(steps=2, warmup=2))
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


def test_closing_in_the_warm_up_leaves_the_profiler_usable(tmp_path, control):
    with Capture(tmp_path / "captures", settings=SHORT) as first:
        (entry,) = processes(control)
        _ask(entry, tmp_path / "out")
        _train(first, 1)
    assert "before a step was recorded" in json.loads((tmp_path / "out" / "capture.json").read_text())["message"]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        torch.ones(4).sum()
    assert any(event.key == "aten::sum" for event in own.key_averages())
    _train(first, 2)  # counts for nobody
    assert processes(control) == []


def test_a_request_that_nobody_takes_is_answered_at_the_end(tmp_path, control):
    with Capture(tmp_path):
        (entry,) = processes(control)
        _ask(entry, tmp_path / "out")
    assert _record(tmp_path / "out").message == "the training has ended"


@pytest.mark.parametrize("content", ["{", "[]", '{"id": "1", "folder": 3}', None])
def test_what_is_no_request_is_refused(capture, entry, tmp_path, content, caplog):
    _ask(entry, tmp_path / "out")
    request = entry.path / "request-1.json"
    if content is None:  # a link: to a file that somebody else may have written
        shutil.move(request, tmp_path / "elsewhere.json")
        request.symlink_to(tmp_path / "elsewhere.json")
    else:
        request.write_text(content)
    _train(capture, 1)
    assert not (tmp_path / "out").exists()
    assert list(entry.path.glob("request-*")) == []
    assert "not valid, or not from this user" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_request_of_another_user_is_refused(capture, entry, tmp_path):
    _ask(entry, tmp_path / "out")
    os.chown(entry.path / "request-1.json", 12345, 12345)
    _train(capture, 3)
    assert not (tmp_path / "out").exists()


def test_a_control_folder_that_vanishes_is_survived(capture, entry, control, tmp_path, caplog):
    _ask(entry, tmp_path / "out")
    shutil.rmtree(control)
    _train(capture, 3)
    assert "this process cannot be captured any more" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_control_folder_that_vanishes_in_a_capture_is_not_made_anew(capture, entry, control, tmp_path):
    """Made by the way it would be open to others, and then refused to every process of this user."""
    _ask(entry, tmp_path / "out")
    _train(capture, 1)
    shutil.rmtree(control)
    _train(capture, 3)
    assert (tmp_path / "out" / "trace.json.gz").exists()
    assert not control.exists()


def test_a_record_that_cannot_be_made_ends_the_capture_all_the_same(capture, entry, tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(Recording, "_record", fail)
    _ask(entry, tmp_path / "out")
    _train(capture, 6)
    assert caplog.text.count("device-side assert") == 1
    assert not _said(entry).recording
    assert _names(tmp_path / "out") == ["trace.json.gz"]


@pytest.mark.parametrize("how", ["open", "file"])
def test_without_a_control_folder_a_training_goes_on(tmp_path, control, caplog, how):
    if how == "open":
        control.mkdir(mode=0o755)
    else:
        control.write_text("")
    with Capture(tmp_path / "captures", settings=SHORT) as capture:
        _train(capture, 3)
    assert "`steptrace capture` will not find this process" in caplog.text


def test_a_second_one_takes_the_first_one_s_place(capture, tmp_path, control):
    with Capture(tmp_path / "other") as second:
        _train(capture, 5)
        _train(second, 2)
        (entry,) = processes(control)
        assert entry.steps == 2
        assert entry.folder == str(tmp_path / "other")


def test_a_listener_leaves_the_programs_own_alone_and_takes_over_when_it_is_closed(capture, entry, tmp_path, control):
    settings = SimpleNamespace(captures=str(tmp_path / "listener"))
    phases = listen(SimpleNamespace(settings=settings, hooks=SimpleNamespace(labels=False)))
    for _ in range(3):
        next(phases)
        _train(capture, 1)
    assert _said(entry).steps == 3
    capture.close()
    next(phases)
    assert [found.folder for found in processes(control)] == [str(tmp_path / "listener")]
    phases.close()


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
def test_a_forked_child_neither_counts_nor_answers(capture, entry, control):
    _train(capture, 1)
    child = os.fork()
    if child == 0:
        try:
            _train(capture, 5)
            capture.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert _said(entry).steps == 1
    assert len(processes(control)) == 1


def test_the_control_folder_is_looked_into_once_a_second(capture, entry, tmp_path, monkeypatch):
    now = [time.perf_counter_ns()]
    monkeypatch.setattr(job, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(job, "_LOOK_NS", 1_000_000_000)
    _train(capture, 1)
    _ask(entry, tmp_path / "out")
    _train(capture, 5)
    assert _said(entry).steps == 1
    assert not (tmp_path / "out").exists()
    now[0] += 1_000_000_000
    _train(capture, 3)
    assert _record(tmp_path / "out").state == "recorded"
    assert not _said(entry).recording  # at once, for whoever asks again


def test_the_record_has_the_times_of_unprofiled_steps_before_it(capture, entry, tmp_path, monkeypatch):
    now = [time.perf_counter_ns()]
    monkeypatch.setattr(job, "perf_counter_ns", lambda: now[0])

    def train(steps: int, step_ns: int) -> None:
        for _ in range(steps):
            now[0] += step_ns
            _train(capture, 1)

    def unprofiled(name: str) -> dict | None:
        return json.loads((tmp_path / name / "capture.json").read_text())["unprofiled"]

    train(100, 2_000_000)
    train(4, 3_000_000)
    assert _said(entry).step_ns == 2_000_000
    _ask(entry, tmp_path / "one", name="1")
    train(3, 50_000_000)  # the request is seen after the first of them, which is still unprofiled
    found = unprofiled("one")
    assert found["step_ns"] == [2_000_000] * 59 + [3_000_000] * 4 + [50_000_000]
    assert found["median_ns"] == 2_000_000
    assert found["load_average"] >= 0
    # Profiled steps are never among them, and without any there is no time.
    train(5, 7_000_000)
    _ask(entry, tmp_path / "two", name="2")
    train(3, 50_000_000)
    assert unprofiled("two")["step_ns"] == [7_000_000] * 4 + [50_000_000]
    _ask(entry, tmp_path / "three", name="3")
    train(3, 50_000_000)
    assert unprofiled("three") is None
    assert _said(entry).step_ns == 7_000_000  # of the latest unprofiled steps


@pytest.mark.usefixtures("forked_programs")
def test_a_recording_needs_torch_and_the_standard_library_only(tmp_path):
    """A launcher's probe runs where steptrace's other dependencies are missing."""
    script = (
        "import sys\n"
        "for name in ('msgspec', 'psutil', 'pandas', 'pyarrow', 'hydra'): sys.modules[name] = None\n"
        "from steptrace.recording import Recording, Request, Settings\n"
        "assert 'torch' not in sys.modules\n"
        f"recording = Recording(Request('1', {str(tmp_path)!r}, Settings(steps=2, warmup=1)), lambda: [5, 7, 6])\n"
        "import torch\n"
        "for number in range(4):\n"
        "    recording.step(number)\n"
        "    torch.ones(4).sum()\n"
        "assert recording.done, recording.message\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trace.json.gz").exists()
    record = json.loads((tmp_path / "capture.json").read_text())
    assert (record["steps"], record["unprofiled"]["median_ns"]) == ({"first": 1, "last": 2, "count": 2}, 6)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"warmup": -1}])
def test_settings_are_checked(wrong):
    with pytest.raises(CaptureError, match=next(iter(wrong))) as caught:
        Settings(**wrong)
    assert caught.value.expected


def test_without_torch_it_imports_counts_and_says_why_it_cannot_record(tmp_path, control):
    """Importing and counting must not cost torch's import, nor need it, nor any package but steptrace."""
    script = (
        "import sys\n"
        "for name in ('torch', 'msgspec', 'psutil'): sys.modules[name] = None\n"
        "import steptrace\n"
        "assert 'steptrace.capture' not in sys.modules\n"
        f"capture = steptrace.capture.Capture({str(tmp_path / 'captures')!r})\n"
        "print(flush=True)\n"
        "sys.stdin.readline()\n"
        "for _ in range(3): capture.step()\n"
        "sys.exit(7)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        (entry,) = processes(control)
        _ask(entry, tmp_path / "out")
        child.communicate(b"go\n")
    assert child.returncode == 7
    record = _record(tmp_path / "out")
    assert record.state == "failed"
    assert "torch" in record.message
