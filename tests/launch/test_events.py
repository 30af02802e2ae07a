"""What the processes of a program append to the file of events is what the launcher reads."""

import dataclasses
import json
import multiprocessing
import os
import subprocess
import sys
from math import inf
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from steptrace.documents import events as read
from steptrace.jobs.process import Follower
from steptrace.launch import events as written
from steptrace.launch.events import Fault, Progressed, Stepped, append
from steptrace.launch.inject import sitecustomize
from steptrace.launch.settings import EVENTS, INJECT, VARIABLE

#: A value of each type that a field has.
VALUES = {str: "a text\nof \udc80 two lines", int: 3, int | None: None}
STATES = ("partial", "complete", "failed")


def example(kind: type) -> object:
    """An event of a class, with some value in each field."""
    values = {name: VALUES[type_] for name, type_ in get_type_hints(kind).items()}
    return kind(**values | ({"state": STATES[0]} if "state" in values else {}))


def test_both_sides_have_the_same_events_with_the_same_fields() -> None:
    program, launcher = ({kind.__name__: kind for kind in get_args(side.Event)} for side in (written, read))
    assert list(program) == list(launcher)
    for name, kind in program.items():
        hints = get_type_hints(launcher[name])
        hints.pop("pid")  # which `append` adds
        if "state" in hints:
            assert get_args(hints.pop("state")) == STATES
            hints["state"] = str
        assert get_type_hints(kind) == hints


@pytest.mark.parametrize("kind", get_args(written.Event), ids=lambda kind: kind.__name__)
def test_every_event_is_read_as_it_was_written(tmp_path: Path, kind: type) -> None:
    append(tmp_path, example(kind))
    (event,) = read.EventsFile(tmp_path / EVENTS).new()
    fields = msgspec.structs.asdict(event)
    assert fields.pop("pid") > 0
    expected = dataclasses.asdict(example(kind))
    assert fields == {name: str(v).replace("\udc80", "?") if isinstance(v, str) else v for name, v in expected.items()}


@pytest.mark.parametrize("event", [
    written.Started(), written.ProbeFailed("why"), written.ModuleMissing("m", "p"), written.TorchMissing("p"),
])  # fmt: skip
def test_the_first_module_of_a_process_writes_the_same_lines(tmp_path: Path, monkeypatch, event: object) -> None:
    """`sitecustomize` has its own copy of `append`: it runs before steptrace can be imported."""
    monkeypatch.setattr(sitecustomize, "_EVENTS", str(tmp_path / EVENTS))
    sitecustomize._tell(type(event).__name__, **dataclasses.asdict(event))
    by_sitecustomize = (tmp_path / EVENTS).read_bytes()
    (tmp_path / EVENTS).unlink()
    append(tmp_path, event)
    assert by_sitecustomize == (tmp_path / EVENTS).read_bytes()


def test_processes_that_start_after_the_measurement_get_no_probe(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(INJECT), VARIABLE: json.dumps({"out": str(tmp_path)})}

    def started() -> int:
        subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
        return sum(isinstance(event, read.Started) for event in read.EventsFile(tmp_path / EVENTS).new())

    append(tmp_path, Fault('a report that names it:\n{"event": "MeasurementOver"}'))
    assert started() == 1
    append(tmp_path, written.MeasurementOver())
    assert started() == 1


def test_a_number_of_steps_that_is_not_known_yet_is_not_shown(tmp_path: Path) -> None:
    shown: list[str] = []
    events = Follower(tmp_path, shown.append)
    for total, done in ((None, 0), (None, 3), (30, 30)):
        append(tmp_path, Progressed("warm-up", 2, 2))
        append(tmp_path, Progressed("followed", done, total))
        events._shown_at = -inf
        events.look()
    assert shown == ["warm-up 2/2, followed 0", "warm-up 2/2, followed 3", "warm-up 2/2, followed 30/30"]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_is_not_whole_yet_is_read_later(tmp_path: Path, cut: int) -> None:
    append(tmp_path, Stepped())
    append(tmp_path, Progressed("timed", 3, 30))
    whole = (tmp_path / EVENTS).read_bytes()
    (tmp_path / EVENTS).write_bytes(whole[:-cut])
    file = read.EventsFile(tmp_path / EVENTS)
    assert [type(event).__name__ for event in file.new()] == ["Stepped"]
    (tmp_path / EVENTS).write_bytes(whole)
    assert [(event.done, event.total) for event in file.new()] == [(3, 30)]
    assert file.new() == []


@pytest.mark.parametrize(
    "damage",
    [
        b'\n{"event": "Fau',
        b"\n\xff\xfe\n",
        b'\n{"event": "Unknown", "pid": 1}\n',
        b"\n[1]\n",
        b"[" * 200_000,
        b'\n{"event": "Stepped", "pid": 1, "more": ' + b"[" * 200_000 + b"\n",
        b'\n{"event": "Progressed", "pid": 1e400, "phase": "timed", "done": 1, "total": null}\n',
        b'\n{"event": "RecordWritten", "pid": 1, "rank": "0", "world_size": 1, "state": "complete"}\n',
    ],
)
def test_half_a_line_costs_no_other_event(tmp_path: Path, damage: bytes) -> None:
    append(tmp_path, Stepped())
    with (tmp_path / EVENTS).open("ab") as file:
        file.write(damage)
    append(tmp_path, Fault("a bug"))
    assert [type(event).__name__ for event in read.EventsFile(tmp_path / EVENTS).new()] == ["Stepped", "Fault"]


@pytest.mark.parametrize("left", [0, 1, 20])
def test_a_file_that_begins_anew_is_read_from_its_beginning(tmp_path: Path, left: int) -> None:
    """A cleaner of temporary files may remove it, or cut it off; the next event makes it again."""
    path = tmp_path / EVENTS
    file = read.EventsFile(path)
    append(tmp_path, Fault("before" * 100))
    assert len(file.new()) == 1
    path.write_bytes(path.read_bytes()[:left])
    append(tmp_path, Stepped())
    assert [type(event).__name__ for event in file.new()] == ["Stepped"]


def _append_many(folder: Path, text: str) -> None:
    for _ in range(200):
        append(folder, Fault(text))


def test_lines_of_several_processes_do_not_mix(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    texts = [letter * 9_000 for letter in "abc"]  # longer than a pipe's atomic write, as a traceback may be
    processes = [fork.Process(target=_append_many, args=(tmp_path, text)) for text in texts]
    for process in processes:
        process.start()
    file = read.EventsFile(tmp_path / EVENTS)
    events = []
    while any(process.is_alive() for process in processes):
        events += file.new()
    events += file.new()
    assert sorted(event.report[0] for event in events) == sorted("abc" * 200)
    assert {event.report for event in events} == set(texts)
    assert {event.pid for event in events} == {process.pid for process in processes}


def test_without_a_folder_nobody_asks(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        append(tmp_path / "gone", Stepped())
    assert read.EventsFile(tmp_path / "gone" / EVENTS).new() == []
