"""Starts a child process, waits for its end, and writes status.json.

    python -m steptrace.train.supervise --out DIR [--gpus N | --cpu] -- COMMAND...

The child has a session of its own, and writes to DIR/LOG. While it lives its devices are locked, for one training at a
time, in a folder of the user. It is ended, with all its descendants, at the time limit, and when this process or its
parent ends. The exit code is 0 whenever a status was written: the workflow handles failures after the pages are made.
If the supervisor is stopped, or its parent ends, it writes no status, and the run counts as not begun.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil
from filelock import FileLock, Timeout

from steptrace.documents.run import LOG_FILE, RunStatus, Status
from steptrace.errors import SteptraceError, exit_with
from steptrace.files import user_folder
from steptrace.machine import gpu_ids, visible_gpus
from steptrace.processes import Children, in_words, require_workflow
from steptrace.record import marks_of, read_status, result_of, write_document
from steptrace.tasks import read_task
from steptrace.train.forked import forked_program

_POLL_S: Final = 0.05
#: Seconds after which a wait for devices is mentioned; the next mention comes after twice as long.
_LONG_WAIT_S: Final = 5.0
#: Lines of the log in a status, and characters of each.
_TAIL: Final = 20
_LONGEST: Final = 500
#: The last line of a traceback, a message of ours, or a compiler's.
_EXCEPTION: Final = re.compile(
    r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Timeout|Missing)\b(: .*)?\Z|error: |\S+:\d+:\d+: (fatal )?error: "
)
#: What out of memory looks like in a log: torch on a device, the runtime and its libraries (pinned memory, workspaces,
#: communicators), Python, torch's host allocator, C++.
_OUT_OF_MEMORY: Final = re.compile(
    r"OutOfMemoryError\b|MemoryError\b|(?:CUDA|HIP)(?: error:)? out of memory|Cuda failure \d+ 'out of memory'"
    r"|(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc"
)
#: Signals of a program's own crash; others come from outside.
_CRASHES: Final = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


@dataclass(frozen=True)
class Lease:
    """Devices locked until `locks` is closed; `environment` makes a child process use them."""

    locks: ExitStack
    environment: Mapping[str, str]
    problem: str = ""


def take_devices(gpus: int, *, cpu: bool = False) -> Lease | None:
    """Lock that many GPUs, or the processor, if free: all or none. A GPU's lock is named by its UUID."""
    names = ["cpu"] if cpu else visible_gpus()
    locked_by = dict(zip(names, ["cpu"] if cpu else gpu_ids(names), strict=True))
    needed, taken, locks = 1 if cpu else gpus, list[str](), ExitStack()
    if needed > len(names):
        return Lease(locks, {}, f"GPUs needed: {needed}, available: {len(names)}; use scale=cpu")
    for name in names:
        if len(taken) < needed:
            with contextlib.suppress(Timeout):
                locks.enter_context(FileLock(_lock_file(locked_by[name]), blocking=False))
                taken.append(name)
    if len(taken) == needed:
        return Lease(locks, {"CUDA_VISIBLE_DEVICES": ",".join(taken)} if gpus else {})
    locks.close()
    return None


def _lock_file(device: str) -> Path:
    return user_folder() / f"{device.replace('/', '_')}.lock"  # an instance of MIG may have slashes in its name


@dataclass(frozen=True)
class Job:
    """What to run and where.

    Attributes:
        out: folder of the run; emptied first.
        command: the child's command line.
        log: file in `out` that gets the child's output.
        gpus: number of GPUs to lock while the child runs.
        cpu: whether to lock the processor, so that no other timed training runs on it.
        key: digest of everything that the run depends on, for its status.
        attempt: number of the attempt, for its status.
        result: the file that it leaves in `out` where it ends well; default: by the name of `out`.
        needs: folders of what was prepared for it. Where that has failed, it is named in the job's own failure.
    """

    out: Path
    command: Sequence[str]
    log: str = LOG_FILE
    gpus: int = 0
    cpu: bool = False
    key: str = ""
    attempt: int = 1
    result: str = ""
    needs: Sequence[str] = ()


def supervise(jobs: Sequence[Job], *, at_once: int = 1, timeout_s: float | None = None) -> Iterator[tuple[Job, Status]]:
    """Run every job to its end, some at once; write and yield each one's status.

    Raises:
        SystemExit: the parent has ended, or a signal stops this process; no child is left.
    """
    parent, waiting, running = os.getppid(), list(jobs), list[_Run]()
    require_workflow()
    told = _Wait()
    with Children() as children:
        while waiting or running:
            while waiting and len(running) < at_once:
                lease = take_devices(waiting[0].gpus, cpu=waiting[0].cpu)
                if lease is None:
                    told.look(waiting[0], is_alone=not running)
                    break
                running.append(_Run(waiting.pop(0), lease, timeout_s, children))
                told = _Wait()
            time.sleep(_POLL_S)
            over = [run for run in running if run.is_over()]
            running = [run for run in running if run not in over]
            if over:
                children.end(but=[run.child for run in running if run.child])
            if children.signals or os.getppid() != parent:
                sys.exit(128 + children.signals[0] if children.signals else 1)
            for run in over:
                yield run.job, run.record()


class _Wait:
    """Says now and then that a job waits for its devices, which another process has."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._next_s = _LONG_WAIT_S

    def look(self, job: Job, *, is_alone: bool) -> None:
        """Say it if it is time to; not of a job that waits for another of this process."""
        waited_s = time.monotonic() - self._since
        if is_alone and waited_s >= self._next_s:
            self._next_s = 2 * self._next_s
            what = "the processor" if job.cpu else f"{job.gpus} of the GPUs {', '.join(visible_gpus())}"
            sys.stderr.write(
                f"steptrace: {job.out.as_posix()} has waited {waited_s:.0f} s for {what}: another training has the "
                f"lock (see {user_folder()})\n"
            )
            sys.stderr.flush()


class _Run:
    """A job's child; `record` writes its status after its end."""

    def __init__(self, job: Job, lease: Lease, timeout_s: float | None, children: Children) -> None:
        self.job, self._lease, self._problem = job, lease, lease.problem
        shutil.rmtree(job.out, ignore_errors=True)  # no files of an earlier run
        job.out.mkdir(parents=True, exist_ok=True)
        result_of(job.out, job.result).unlink(missing_ok=True)  # that of a prediction lies beside its folder
        self._log, self._errors = job.out / job.log, job.out / "error.json"
        self._started_at, self._start = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
        self._limit = self._start + timeout_s if timeout_s else None
        self.child: psutil.Popen | None = None
        self._is_late = False
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TORCHELASTIC_ERROR_FILE": str(self._errors.resolve())}
        environment |= lease.environment
        with self._log.open("wb") as log:
            if self._problem:
                log.write(f"{self._problem}\n".encode())
                return
            try:
                self.child = children.start(
                    job.command,
                    instead=forked_program(job.command, environment),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            except OSError as error:
                self._problem = f"{job.command[0]} cannot be started: {error.strerror}"

    def is_over(self) -> bool:
        """Whether it has ended, or its time has."""
        if self.child is None or self.child.poll() is not None:
            return True
        self._is_late = self._limit is not None and time.monotonic() >= self._limit
        return self._is_late

    def record(self) -> Status:
        """Write status.json."""
        self._lease.locks.close()
        lines = _tail(self._log)
        code = self.child.returncode if self.child else None
        status, error = self._ending(code, lines)
        if status != "ok":
            error = "; ".join([*self._unprepared(), *filter(None, [error])])
        wall_s = round(time.monotonic() - self._start, 3)
        ended_by = -code if code is not None and code < 0 else None
        files = marks_of(self.job.out, self.job.log, self.job.result) if status == "ok" else {}
        written = Status(
            status=status,
            exit_code=None if ended_by else code,
            signal=ended_by,
            error=error and error[:_LONGEST],
            log_tail=tuple(line[:_LONGEST] for line in lines[-_TAIL:]),
            started_at=self._started_at,
            wall_s=wall_s,
            key=self.job.key,
            attempt=self.job.attempt,
            files=files,
        )
        write_document(self.job.out, written)
        return written

    def _ending(self, code: int | None, lines: Sequence[str]) -> tuple[RunStatus, str | None]:
        """Its status, and its error in one line."""
        if self._problem:
            return "failed", self._problem
        if self._is_late:
            return "failed", "stopped at its time limit (timeout_minutes)"
        if code == 0:
            result = result_of(self.job.out, self.job.result)
            return ("ok", None) if result.exists() else ("failed", f"exit code 0, but it has not written {result.name}")
        error = self._error(code, lines)
        out_of_memory = next((line for line in (error, *reversed(lines)) if _OUT_OF_MEMORY.search(line)), None)
        if out_of_memory is not None:
            return "out of memory", error if _OUT_OF_MEMORY.search(error) else out_of_memory.strip()
        killed = code is not None and code < 0 and -code not in _CRASHES
        return "killed" if killed else "failed", error

    def _unprepared(self) -> list[str]:
        """What was prepared for it and has failed, with the reason."""
        failures = []
        for folder in map(Path, self.job.needs):
            with contextlib.suppress(SteptraceError):
                if (status := read_status(folder)).status != "ok":
                    failures.append(f"it needs '{folder.name}', which failed ({status.error})")
        return failures

    def _error(self, code: int | None, lines: Sequence[str]) -> str:
        """The error of the rank that failed first, by torchelastic's file, else the log's last line."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError):
            message = json.loads(self._errors.read_text(encoding="utf-8"))["message"]
            return str(message if isinstance(message, str) else message["message"]).strip().splitlines()[0]
        if code is not None and code < 0:
            return f"ended with {in_words(code)}"
        exception = next((line for line in reversed(lines) if _EXCEPTION.match(line)), None)
        return (exception or (lines[-1] if lines else f"exit code {code}")).removeprefix("error: ")


def _tail(path: Path) -> list[str]:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
        return [line.rstrip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Run one training and record how it ended.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--gpus", type=int, default=0, help="number of GPUs to lock while the child runs")
    parser.add_argument("--cpu", action="store_true", help="lock the processor while the child runs")
    parser.add_argument("--timeout", type=float, default=0, help="seconds; 0: never")
    parser.add_argument("--log", default=LOG_FILE, help="file in the folder that gets the child's output")
    parser.add_argument("--planned", action="store_true", help="the folder is a task of the plan, which has its key")
    parser.add_argument("command", nargs="+", help="the child, after --")
    options = vars(parser.parse_args(arguments))
    timeout_s = options.pop("timeout") or None
    if options.pop("planned"):
        task = read_task(options["out"].as_posix())
        options |= {"key": task.key, "attempt": task.attempt, "result": task.result, "needs": task.needs}
    for _ in supervise([Job(**options)], timeout_s=timeout_s):
        pass
    return 0


if __name__ == "__main__":
    exit_with(main)
