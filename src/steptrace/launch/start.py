"""Starts a command with the probe in its environment, and waits for its end. Imports no torch.

Every Python process that the command starts, directly or not, imports `inject/sitecustomize.py`: it is first on
PYTHONPATH. Output, input, working directory and exit code of the program stay its own. It is stopped if it runs on long
after its last measured step. All its descendants are ended with it, in any session. Having a session of its own, it
gets a terminal's Ctrl-C from this process alone.
"""

import contextlib
import json
import math
import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, TextIO

import psutil

from steptrace.documents.base import convert
from steptrace.documents.probe import RankRecord
from steptrace.errors import LaunchError
from steptrace.launch.result import Launched
from steptrace.launch.settings import INJECT, OVER, PROGRESS, VARIABLE, LaunchSettings
from steptrace.output_folder import require_empty
from steptrace.processes import Children

_POLL_S: Final = 0.2
#: Seconds that a program has to end by itself after its last measured step.
_GRACE_S: Final = 60.0
#: Seconds that a program has to end by itself after a signal other than Ctrl-C's.
_INTERRUPT_S: Final = 10.0
#: Why a program was stopped that took longer than it may.
_TIME_LIMIT: Final = "its time limit was reached"
#: Seconds after which a line of progress is printed within a phase, too.
_EVERY_S: Final = 30.0
#: Seconds from which a wait is mentioned.
_LONG_S: Final = 5.0
#: The interpreter of a file that is not executable, by its suffix.
_STARTERS: Final = {".py": "python", ".ipynb": "jupyter execute"}


def launch(
    command: Sequence[str],
    settings: LaunchSettings,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    output: TextIO | None = None,
    status: Callable[[str], object] = lambda _: None,
) -> Launched:
    """Run a command with the probe in it.

    Args:
        command: the program and its arguments.
        settings: the probe's settings; their folder `out` must be new or empty.
        cwd: its working directory; default: this process's.
        env: more environment variables.
        output: its standard output; default: this process's.
        status: gets each line of its progress.

    Raises:
        LaunchError: the command cannot be started.
        SteptraceError: the probe's folder holds something.
    """
    out = Path(settings.out)
    require_empty(out)
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **(env or {})}
    path = [str(INJECT), *filter(None, [environment.get("PYTHONPATH")])]
    environment |= {"PYTHONPATH": os.pathsep.join(path), VARIABLE: json.dumps(asdict(settings))}
    environment.setdefault("KINETO_LOG_LEVEL", "6")  # errors alone: the profiler tells of its every start
    with Children() as children:
        try:
            child = children.start(command, last=signal.SIGTERM, cwd=cwd, env=environment, stdout=output)
        except OSError as error:
            is_file = os.path.isfile(Path(cwd or ".", command[0]))  # noqa: PTH113 - of too long a name, too
            starter = _STARTERS.get(Path(command[0]).suffix) if is_file else None
            raise LaunchError(
                f"cannot be started ({error.strerror})",
                where=command[0],
                expected="a command that trains with PyTorch, such as: python train.py",
                next_step=starter and f"-- {starter} {shlex.join(command)}",
            ) from error
        if settings.mode == "capture":
            stopped = _wait(child, children.signals)
        else:
            stopped = _follow(child, StatusLine(out, status), children.signals, settings.limit_s)
        if child.poll() is None and children.signals:
            _interrupt(child, children.signals)
        elif child.poll() is None and stopped == _TIME_LIMIT:
            _interrupt(child, [signal.SIGTERM])
        if child.poll() is not None and settings.mode == "capture":
            children.spare()  # a program that has ended by itself may have left a service
    with contextlib.suppress(OSError):
        (out / OVER).touch()
    ranks = sorted(_records(out), key=lambda record: record.rank)
    failures = tuple(file.read_text(encoding="utf-8") for file in sorted(out.glob("failed.*")))
    started = len(list(out.glob("started.*")))
    return Launched(child.returncode, stopped, tuple(ranks), out, started, failures, settings.mode == "predict")


def _interrupt(child: psutil.Popen, signals: list[int]) -> None:
    """As Ctrl-C does: the program may end by itself, and timed steps are kept."""
    os.killpg(child.pid, signal.SIGINT)
    # Whoever pressed Ctrl-C may wait for it, as for a checkpoint, or press it again.
    ends_at = math.inf if signals[0] == signal.SIGINT else time.monotonic() + _INTERRUPT_S
    while child.poll() is None and len(signals) == 1 and time.monotonic() < ends_at:
        time.sleep(_POLL_S)


class StatusLine:
    """Prints the program's progress, which its probe writes into a folder.

    Args:
        out: the probe's folder.
        show: gets each line.
    """

    def __init__(self, out: Path, show: Callable[[str], object]) -> None:
        self.out, self._file, self._show = out, out / PROGRESS, show
        self._text, self._over = "", 0
        self._changed_at = self._shown_at = time.monotonic()

    def look(self) -> None:
        """Read the progress; print it at the end of a phase, or if nothing was printed for long."""
        now, text = time.monotonic(), self._text
        with contextlib.suppress(OSError):
            text = self._file.read_text(encoding="utf-8")
        if text != self._text:
            self._text, self._changed_at = text, now
        counts = [phase.rpartition(" ")[2].split("/") for phase in text.split(", ") if phase]
        over = sum(done == total for done, total in counts)
        if over > self._over or now - self._shown_at >= _EVERY_S:
            self._over, self._shown_at = over, now
            self._show(self._line(now - self._changed_at))

    def _line(self, waiting_s: float) -> str:
        if not self._text:
            return f"no step yet after {waiting_s:.0f} s"
        waiting = f", no step for {waiting_s:.0f} s" if waiting_s >= _LONG_S else ""
        return f"{self._text}{waiting}"


def _wait(child: psutil.Popen, signals: list[int]) -> str | None:
    """Wait for the end of a program that runs to its own end; returns why it was stopped, None if it was not."""
    while child.poll() is None:
        time.sleep(_POLL_S)
        if signals:
            return f"signal {signals[0]}"
    return None


def _follow(child: psutil.Popen, status: StatusLine, signals: list[int], limit_s: float | None) -> str | None:
    """Wait for the program's end; returns why it was stopped, None if it ended by itself."""
    measured_at, out = None, status.out
    late_at = time.monotonic() + (math.inf if limit_s is None else limit_s)
    while child.poll() is None:
        time.sleep(_POLL_S)
        status.look()
        if signals:
            return f"signal {signals[0]}"
        if time.monotonic() >= late_at:
            return _TIME_LIMIT
        if measured_at is None and _is_measured(out):
            measured_at = time.monotonic()
            (out / OVER).touch()
        if measured_at is not None and time.monotonic() - measured_at > _GRACE_S:
            return f"it went on for {_GRACE_S:g} s after its last step was measured"
    status.look()
    return None


def _is_measured(out: Path) -> bool:
    records = _records(out)
    return bool(records) and len(records) >= records[0].world_size and all(a.state != "partial" for a in records)


def _records(out: Path) -> list[RankRecord]:
    records = []
    for file in out.glob("rank*[0-9].json"):
        with contextlib.suppress(OSError, ValueError):  # a cleaner of temporary files may have been here
            # The standard library's: a loss may be NaN.
            records.append(convert(json.loads(file.read_text(encoding="utf-8")), RankRecord))
    return records
