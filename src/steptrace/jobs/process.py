"""Starts one process, follows it, and knows when it has to be ended.

`Children` gives the process a session of its own, and ends it with all its descendants, also when this process ends.
`Process` adds the probe in its environment, the events that the probe appends, the time limit, and the end of a program
that runs on after its measurement.

`launch/inject/` is first on the program's PYTHONPATH, so every Python process that it starts imports the
`sitecustomize.py` there.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import psutil

from steptrace.documents.base import convert
from steptrace.documents.events import Event, EventsFile, Progressed, RecordWritten, Stepped
from steptrace.documents.probe import RankRecord
from steptrace.files import decode_json, read_bytes
from steptrace.format import rough_duration
from steptrace.launch.events import MeasurementOver, append
from steptrace.launch.result import Launched, Stop
from steptrace.launch.settings import EVENTS, INJECT, VARIABLE, LaunchSettings
from steptrace.processes import Children

#: Seconds that a program gets to end by itself after its last measured step.
_GRACE_S: Final = 60.0
#: The same for a program that trains in other processes only, counted from the end of the last of these.
_GRACE_OF_STARTER_S: Final = 10.0
#: Seconds after which a line of progress is printed although no phase has ended.
_EVERY_S: Final = 30.0
#: Seconds without a step after which a line of progress mentions the wait.
_LONG_S: Final = 5.0


class Process:
    """A command that runs in a session of its own; `children` ends it.

    Attributes:
        child: the process.
        stopped: why it has to be ended before its own end; None if it does not.

    Args:
        children: starts the command and ends it.
        command: the program and its arguments.
        environment: its environment variables.
        probe: the settings of the probe in the program; None: no probe. The folder `probe.out` must exist and be empty.
        limit_s: seconds that it may take; None: no limit.
        show: gets lines on the progress of a measured program.
        options: further options of `Children.start`.

    Raises:
        OSError: the command cannot be started.
    """

    def __init__(
        self,
        children: Children,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        probe: LaunchSettings | None = None,
        limit_s: float | None = None,
        show: Callable[[str], object] = lambda _: None,
        **options: Any,
    ) -> None:
        self.stopped: Stop | None = None
        self._probe = probe
        self._follower = None if probe is None else Follower(Path(probe.out), show)
        self._measured_at: float | None = None
        self._trainers_ended_at: float | None = None
        env = dict(environment) if probe is None else _with_probe(environment, probe)
        self.child = children.start(command, env=env, **options)
        self._late_at = time.monotonic() + (math.inf if limit_s is None else limit_s)

    def is_over(self) -> bool:
        """Whether it has ended, or has to be ended (`stopped`). The caller asks several times a second."""
        if self.child.poll() is not None:
            return True
        if self._follower is not None:
            self._follower.look()
        now = time.monotonic()
        if now >= self._late_at:
            self.stopped = Stop("time_limit")
        elif self._is_measured():
            if self._measured_at is None:
                self._measured_at = now
                self._leave_new_processes_alone()
            if self._trainers_ended_at is None and self._have_trainers_ended():
                self._trainers_ended_at = now
            if now - self._measured_at > _GRACE_S:
                self.stopped = Stop("measured", seconds=_GRACE_S)
            elif self._trainers_ended_at is not None and now - self._trainers_ended_at > _GRACE_OF_STARTER_S:
                self.stopped = Stop("measured", seconds=_GRACE_OF_STARTER_S)
        return self.stopped is not None

    def _have_trainers_ended(self) -> bool:
        """Whether other processes than the program's first one have made all steps, and none of them is left."""
        assert self._follower is not None
        trainers = self._follower.trainers
        return bool(trainers) and self.child.pid not in trainers and not any(map(psutil.pid_exists, trainers))

    def _is_measured(self) -> bool:
        """Whether the measurement is complete. In mode `capture` it never is: the program is not ours to end."""
        if self._probe is None or self._follower is None or self._probe.mode == "capture":
            return False
        return self._follower.is_measured

    @property
    def is_at_time_limit(self) -> bool:
        """Whether it has to be ended because its time limit is over."""
        return self.stopped is not None and self.stopped.reason == "time_limit"

    @property
    def exit_code(self) -> int | None:
        """Its exit code, negative if a signal ended it; None while it runs."""
        code = self.child.returncode
        return None if code is None else int(code)

    def launched(self) -> Launched:
        """How a measured program ended, and what its processes left. To be called after its end."""
        assert self._probe is not None
        assert self._follower is not None
        self._leave_new_processes_alone()
        self._follower.look()
        out = Path(self._probe.out)
        return Launched(
            exit_code=self.child.returncode,
            stopped=self.stopped,
            ranks=tuple(sorted(_records(out), key=lambda record: record.rank)),
            out=out,
            events=tuple(self._follower.events),
            predicted=self._probe.mode == "predict",
        )

    def _leave_new_processes_alone(self) -> None:
        assert self._probe is not None
        with contextlib.suppress(OSError):
            append(Path(self._probe.out), MeasurementOver())


def _with_probe(environment: Mapping[str, str], probe: LaunchSettings) -> dict[str, str]:
    """The environment variables, and in addition those that put the probe into the program."""
    path = [str(INJECT), *filter(None, [environment.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": os.pathsep.join(path), VARIABLE: json.dumps(asdict(probe))}
    # Level 6 prints errors only. Otherwise Kineto, which records traces, prints a line whenever it starts.
    return {"KINETO_LOG_LEVEL": "6", **environment, **variables}


class Follower:
    """Reads the events of a program while it runs, and shows its progress.

    Attributes:
        events: all events so far.
        trainers: the processes that have made a step, by number.

    Args:
        out: the probe's folder.
        show: gets each line of progress.
    """

    def __init__(self, out: Path, show: Callable[[str], object]) -> None:
        self.events: list[Event] = []
        self._file = EventsFile(out / EVENTS)
        self._show = show
        #: The latest record of each rank.
        self._written: dict[int, RecordWritten] = {}
        #: The latest progress of each phase, in the order of the phases.
        self._phases: dict[str, Progressed] = {}
        self.trainers: set[int] = set()
        self._phases_over = 0
        self._changed_at = self._shown_at = time.monotonic()

    def look(self) -> None:
        """Read the new events; show the progress if a phase has ended, or if nothing was shown for long."""
        now = time.monotonic()
        for event in self._file.new():
            self.events.append(event)
            if isinstance(event, RecordWritten):
                self._written[event.rank] = event
            elif isinstance(event, Stepped):
                self.trainers.add(event.pid)
            elif isinstance(event, Progressed):
                self._phases[event.phase] = event
                self._changed_at = now
        over = sum(phase.done == phase.total for phase in self._phases.values())
        if over > self._phases_over or now - self._shown_at >= _EVERY_S:
            self._phases_over = over
            self._shown_at = now
            self._show(self._line(now - self._changed_at))

    @property
    def is_measured(self) -> bool:
        """Whether every rank has written its record, and none of the records is partial."""
        written = list(self._written.values())
        return (
            bool(written)
            and len(written) >= written[0].world_size
            and all(record.state != "partial" for record in written)
        )

    def _line(self, waiting_s: float) -> str:
        if not self._phases:
            return f"no step yet after {rough_duration(waiting_s)}"
        text = ", ".join(
            f"{name} {phase.done}{'' if phase.total is None else f'/{phase.total}'}"
            for name, phase in self._phases.items()
        )
        waiting = f", no step for {rough_duration(waiting_s)}" if waiting_s >= _LONG_S else ""
        return f"{text}{waiting}"


def _records(out: Path) -> list[RankRecord]:
    records = []
    for file in out.glob("rank*[0-9].json"):
        with contextlib.suppress(OSError, ValueError):  # a cleaner of temporary files may have removed it
            # The standard library's reader: a loss may be NaN.
            records.append(convert(decode_json(read_bytes(file)), RankRecord))
    return records
