"""Runs jobs in the background, waits for their ends, and writes the status.json of each job.

    python -m steptrace.jobs.supervise --out DIR [--gpus N | --cpu] --variant CONFIG.yaml [--repeat K]
    python -m steptrace.jobs.supervise --out DIR [--gpus N | --cpu] -- COMMAND...

A job is the measured run of a study's variant, or a command that writes its own result. Its process has a session of
its own, and its output goes to DIR/LOG. While it lives its devices are locked, so that only one training at a time runs
on each. The process ends, with all its descendants, at the time limit, and when this process or its parent ends.

The exit code is 0 whenever a status was written, also that of a failure: the workflow handles failures after the pages
are made. If the supervisor is stopped, or its parent ends, it writes no status, and the run counts as not begun.
"""

import argparse
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from steptrace.documents.run import LOG_FILE, RunStatus, Status
from steptrace.errors import MESSAGE_VARIABLE, SteptraceError, exit_with
from steptrace.files import decode_json, read_bytes, scratch_folder, user_folder
from steptrace.foreign_messages import ERROR_LINE, OUT_OF_MEMORY
from steptrace.format import rough_duration
from steptrace.jobs.devices import Lease, take_devices
from steptrace.jobs.forked import forked_program
from steptrace.jobs.process import Process
from steptrace.jobs.variant import VariantRun
from steptrace.launch.result import Launched, fault
from steptrace.machine import visible_gpus
from steptrace.processes import Children, in_words, require_workflow
from steptrace.run_folder import RUN_FILE, marks_of, read_status, write_document
from steptrace.tasks import read_task

_POLL_S: Final = 0.05
#: The file in a job's folder with the message that its process ended with, if it had one.
_MESSAGE_FILE: Final = "message.txt"
#: Seconds after which a wait for devices is mentioned; each next mention comes after twice as long.
_LONG_WAIT_S: Final = 5.0
#: The number of lines of the log in a status, and the most characters of each.
_TAIL: Final = 20
_LONGEST: Final = 500
#: The beginning of the line in which a program of steptrace's states its error.
_OF_STEPTRACE: Final = "error: "
#: Signals by which a program crashes itself; any other comes from outside.
_CRASHES: Final = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


@dataclass(frozen=True)
class Job:
    """One job: what to run, where, and on which devices.

    Attributes:
        out: folder of the run; emptied first.
        command: the child's command line; empty if there is a `variant`.
        variant: the resolved configuration of a variant, which is trained and measured.
        repeat: number of the variant's repeat, from 0.
        log: file in `out` that gets the child's output.
        gpus: number of GPUs to lock while the child runs.
        cpu: whether to lock the processor, so that no other timed training runs on it.
        key: digest of everything that the run depends on; its status holds it.
        attempt: number of the attempt; its status holds it.
        result: the file that a successful job leaves, relative to `out`; default: that of a measured run.
        needs: folders of the preparations that it needs. If one has failed, the error of a failed job names it.
        starts_program: whether the command starts a program of the user's, whose output is in the log, too. If the
            program has failed, its error is part of the job's.
    """

    out: Path
    command: Sequence[str] = ()
    variant: Path | None = None
    repeat: int = 0
    log: str = LOG_FILE
    gpus: int = 0
    cpu: bool = False
    key: str = ""
    attempt: int = 1
    result: str = RUN_FILE
    needs: Sequence[str] = ()
    starts_program: bool = False


def supervise(jobs: Sequence[Job], *, at_once: int = 1, timeout_s: float | None = None) -> Iterator[tuple[Job, Status]]:
    """Run every job to its end, some at once; write and yield each one's status.

    Raises:
        SystemExit: the parent has ended, or a signal stops this process; no child is left.
    """
    parent = os.getppid()
    waiting = list(jobs)
    running: list[_Run] = []
    require_workflow()
    wait = _Wait()
    with Children() as children:
        while waiting or running:
            while waiting and len(running) < at_once:
                lease = take_devices(waiting[0].gpus, cpu=waiting[0].cpu)
                if lease is None:
                    wait.look(waiting[0], is_alone=not running)
                    break
                running.append(_Run(waiting.pop(0), lease, timeout_s, children))
                wait = _Wait()
            time.sleep(_POLL_S)
            over = [run for run in running if run.is_over()]
            running = [run for run in running if run not in over]
            if over:
                children.end(but=[run.process.child for run in running if run.process])
            if children.signals or os.getppid() != parent:
                sys.exit(128 + children.signals[0] if children.signals else 1)
            for run in over:
                yield run.job, run.record()


class _Wait:
    """Says now and then that a job waits for devices that another process has locked."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._next_s = _LONG_WAIT_S

    def look(self, job: Job, *, is_alone: bool) -> None:
        """Print a line if the wait is long; unless `is_alone`, the job may wait for others of this process."""
        waited_s = time.monotonic() - self._since
        if is_alone and waited_s >= self._next_s:
            self._next_s = 2 * self._next_s
            what = "the processor" if job.cpu else f"{job.gpus} of the GPUs {', '.join(visible_gpus())}"
            sys.stderr.write(
                f"steptrace: {job.out.as_posix()} has waited {rough_duration(waited_s)} for {what}: another training "
                f"has the lock (see {user_folder()})\n"
            )
            sys.stderr.flush()


class _Run:
    """A job that was started; `record` writes its status after its end."""

    def __init__(self, job: Job, lease: Lease, timeout_s: float | None, children: Children) -> None:
        self.job = job
        self._lease = lease
        self._problem = lease.problem
        shutil.rmtree(job.out, ignore_errors=True)  # no files of an earlier run
        job.out.mkdir(parents=True, exist_ok=True)
        # A prediction's result lies beside its folder, not in it.
        (job.out / job.result).unlink(missing_ok=True)
        self._log = job.out / job.log
        self._errors = job.out / "error.json"
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._start = time.monotonic()
        self._resources = ExitStack()  # holds the probe's folder until the results are written
        self._own_lines: set[str] = set()
        self._variant: VariantRun | None = None
        self.process: Process | None = None
        if not self._problem:
            try:
                self._variant = None if job.variant is None else VariantRun.read(job.variant, job.repeat)
                self.process = self._started(timeout_s, children)
            except SteptraceError as error:
                self._problem = str(error).partition("\n")[0]
        if self._problem:
            self._say(self._problem)

    def _started(self, timeout_s: float | None, children: Children) -> Process | None:
        """The started process; None if it cannot be started, and `_problem` says why."""
        command = self.job.command if self._variant is None else self._variant.command
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "TORCHELASTIC_ERROR_FILE": str(self._errors.resolve()),
            MESSAGE_VARIABLE: str((self.job.out / _MESSAGE_FILE).resolve()),
            **self._lease.environment,
        }
        options: dict[str, Any] = {"instead": forked_program(command, environment)}
        if (variant := self._variant) is not None:
            # On the disk of the results, since a trace may be large.
            probe = self._resources.enter_context(scratch_folder(self.job.out.resolve()))
            environment |= variant.environment
            options = {"probe": variant.probe(Path(probe)), "cwd": variant.cwd}
        with self._log.open("ab") as log:
            options |= {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            try:
                return Process(children, command, environment, limit_s=timeout_s, show=self._say, **options)
            except OSError as error:
                self._problem = f"{command[0]} cannot be started: {error.strerror}"
                return None

    def _say(self, line: str) -> None:
        """Add a line to the job's log, and remember it: the last line of the child's own output may be its error."""
        self._own_lines.add(line)
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")

    def is_over(self) -> bool:
        """Whether it has ended, or has to be ended."""
        return self.process is None or self.process.is_over()

    def record(self) -> Status:
        """Write the results of a measured run, and status.json."""
        self._lease.locks.close()
        code = None if self.process is None else self.process.exit_code
        with self._resources:
            status, error = self._ending(code)
        if status == "ok" and self.process is not None and self.process.stopped is not None:
            code = 0  # it was stopped after its measurement was complete
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
            log_tail=tuple(line[:_LONGEST] for line in _tail(self._log)[-_TAIL:]),
            started_at=self._started_at,
            wall_s=wall_s,
            key=self.job.key,
            attempt=self.job.attempt,
            files=files,
        )
        write_document(self.job.out, written)
        return written

    def _write_results(self, launched: Launched, variant: VariantRun) -> str | None:
        """Write the files of a measured run; return an error in one line, or None if they are written."""
        try:
            variant.write(launched, self.job.out)
        except SteptraceError as error:
            self._say(f"error: {error}")
            return str(error).partition("\n")[0]
        except Exception as error:  # a status has to be written whatever happens, also if the disk is full
            self._say(traceback.format_exc())
            return f"{type(error).__name__}: {error}"
        return None

    def _ending(self, code: int | None) -> tuple[RunStatus, str | None]:
        """The status, and the error in one line. Writes the results of a measured run that ended well."""
        if self._problem or self.process is None:
            return "failed", self._problem
        if self.process.is_at_time_limit:
            return "failed", "stopped at its time limit (timeout_minutes)"
        if self._variant is not None:
            launched = self.process.launched()
            if self._variant.has_ended_well(launched):
                error = self._write_results(launched, self._variant)
                return ("ok", None) if error is None else ("failed", error)
            if (report := fault(launched)) is not None:
                return "failed", report
        if code == 0:
            result = self.job.out / self.job.result
            return ("ok", None) if result.exists() else ("failed", f"exit code 0, but it has not written {result.name}")
        lines = [line for line in _tail(self._log) if line not in self._own_lines]
        error = self._error(code, lines)
        out_of_memory = next((line for line in (error, *reversed(lines)) if OUT_OF_MEMORY.find(line)), None)
        if out_of_memory is not None:
            return "out of memory", error if OUT_OF_MEMORY.find(error) else out_of_memory.strip()
        killed = code is not None and code < 0 and -code not in _CRASHES
        return "killed" if killed else "failed", error

    def _unprepared(self) -> list[str]:
        """The preparations that it needs and that have failed, each in one sentence."""
        failures = []
        for folder in map(Path, self.job.needs):
            with contextlib.suppress(SteptraceError):
                if (status := read_status(folder)).status != "ok":
                    failures.append(f"it needs '{folder.name}', which failed ({status.error})")
        return failures

    def _error(self, code: int | None, lines: Sequence[str]) -> str:
        """The error in one line: that of the first failed rank, the process's message, or the log's last line."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError):
            message = decode_json(read_bytes(self._errors))["message"]
            return str(message if isinstance(message, str) else message["message"]).strip().splitlines()[0]
        if code is not None and code < 0:
            return f"ended with {in_words(code)}"
        errors = [line for line in reversed(lines) if ERROR_LINE.find(line)]
        if message := message_of(self.job.out):
            first = message.splitlines()[0]
            of_program = (line for line in errors if self.job.starts_program and not line.startswith(_OF_STEPTRACE))
            return ": ".join(dict.fromkeys([first, *itertools.islice(of_program, 1)]))
        exception = next(iter(errors), None)
        return (exception or (lines[-1] if lines else f"exit code {code}")).removeprefix(_OF_STEPTRACE)


def message_of(out: Path) -> str | None:
    """The message by which the process of a job has ended, by the job's folder; None if it left none."""
    with contextlib.suppress(OSError, SteptraceError):
        return read_bytes(out / _MESSAGE_FILE).decode(errors="replace").strip() or None
    return None


def _tail(path: Path) -> list[str]:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
        return [line.rstrip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Run one job and record how it ended.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--gpus", type=int, default=0, help="number of GPUs to lock while the child runs")
    parser.add_argument("--cpu", action="store_true", help="lock the processor while the child runs")
    parser.add_argument("--timeout", type=float, default=0, help="seconds; 0: never")
    parser.add_argument("--log", default=LOG_FILE, help="file in the folder that gets the child's output")
    parser.add_argument("--planned", action="store_true", help="the folder is a task of the plan, which has its key")
    parser.add_argument("--variant", type=Path, help="measure this variant, by its resolved config (YAML)")
    parser.add_argument("--repeat", type=int, default=0, help="number of the variant's repeat, from 0")
    parser.add_argument("command", nargs="*", help="without --variant: the child, after --")
    options = vars(parser.parse_args(arguments))
    if bool(options["command"]) is (options["variant"] is not None):
        parser.error("give either --variant or a command")
    timeout_s = options.pop("timeout") or None
    if options.pop("planned"):
        task = read_task(options["out"].as_posix())
        options |= {"key": task.key, "attempt": task.attempt, "result": task.result, "needs": task.needs}
    for _ in supervise([Job(**options)], timeout_s=timeout_s):
        pass
    return 0


if __name__ == "__main__":
    exit_with(main)
