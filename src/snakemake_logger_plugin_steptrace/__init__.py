"""`snakemake --logger steptrace`: a line for each run with its result and the time left; at the end what failed.

Of other jobs a line says how far all is, where none was printed for a while.

Of Snakemake's own messages only warnings and errors are printed; `--verbose` and `-p` show all of them. A dry run
counts the jobs; with `--quiet host` it lists them all, as Snakemake does.
"""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from snakemake.settings.enums import Quietness
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_steptrace.texts import REPEATED, SHOWN
from snakemake_logger_plugin_steptrace.time_left import TimeLeft
from steptrace.errors import SteptraceError
from steptrace.format import printable, rough_duration
from steptrace.format import variant as shown_variant

#: The type of the error by which Snakemake says that the command of a job has failed. The event of the failed job
#: follows it, and is what is printed.
_OF_A_COMMAND: Final = "RuleException"
_CHECKS: Final = ("equivalence", "prediction")
_INDEX: Final = "reports/index.html"
#: After so many seconds without a line, the end of any job makes one.
_QUIET_S: Final = 5.0


class LogHandler(LogHandlerBase):
    """What Snakemake looks for in a logger plugin."""

    writes_to_stream = True
    writes_to_file = False
    has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        """Begin with no job."""
        self._jobs: dict[int, dict[str, Any]] = {}
        self._not_written: list[str] = []
        self._total = 0
        self._done = 0
        self._said = 0.0
        self._left = TimeLeft({}, 0.0)
        self._stream = sys.stdout if self.common_settings.stdout else sys.stderr
        if self.common_settings.dryrun and self._quiet("RULES"):
            # Otherwise Snakemake would prepare a message for each job, which takes longer than finding out what to run.
            self.common_settings.quiet = {*self.common_settings.quiet, Quietness.PROGRESS}

    @property
    def has_filter(self) -> bool:
        """False where Snakemake's own messages are kept."""
        settings = self.common_settings
        whole = settings.dryrun and not self._quiet("PROGRESS")
        return not (settings.verbose or settings.printshellcmds or whole)

    def emit(self, record: logging.LogRecord) -> None:
        """Print what a record means, if anything."""
        event = getattr(record, "event", None)
        if not self.has_filter:
            self._print([self.format(record)])
        elif event == LogEvent.JOB_ERROR:
            self._not_made(record.__dict__)
        elif record.levelno >= logging.WARNING:
            text = self.format(record)
            self._print([] if self._repeats(record) or text.strip().startswith(REPEATED) else [text])
        elif event is not None:
            self._print(self._of_event(event, record))
        elif str(record.msg).startswith(SHOWN):
            self._print([self.format(record)])

    def _repeats(self, record: logging.LogRecord) -> bool:
        """Whether an error only says that the command of a running job has failed."""
        is_error = getattr(record, "event", None) == LogEvent.ERROR
        return is_error and bool(self._jobs) and getattr(record, "exception", None) == _OF_A_COMMAND

    def close(self) -> None:
        """Print what failed, and where the page is."""
        super().close()
        lines = [f"failed: {line}" for line in self._not_written]
        lines += ["the same command again makes what is missing"] if self._not_written else []
        index = Path(_INDEX)
        lines += [f"report: {index.resolve()}"] if index.exists() else []
        self._print([f"steptrace: {line}" for line in lines] if self._total else [])
        self._total = 0

    def _print(self, lines: Sequence[str]) -> None:
        if lines and not self._quiet("ALL"):
            self._stream.write("".join(f"{printable(line)}\n" for line in lines if line))
            self._stream.flush()

    def _quiet(self, about: str) -> bool:
        return any(chosen.name == about for chosen in self.common_settings.quiet or ())

    def _of_event(self, event: LogEvent, record: logging.LogRecord) -> list[str]:
        content = record.__dict__
        if event == LogEvent.RUN_INFO:
            if self.common_settings.dryrun:
                return [self.format(record)]
            counts = {rule: count for rule, count in content["stats"].items() if rule != "total"}
            self._said = time.monotonic()
            self._total = content["stats"]["total"]
            self._left = TimeLeft(counts, self._said)
        elif event == LogEvent.JOB_INFO:
            self._jobs[content["jobid"]] = content
            variant = content["wildcards"].get("variant", "")
            self._left.begin(content["jobid"], content["rule_name"], variant, time.monotonic())
        elif event == LogEvent.JOB_FINISHED:
            job = self._jobs.pop(content["job_id"], None)
            if job is not None:
                self._left.end(content["job_id"], time.monotonic())
            return self._ended(job)
        return []

    def _ended(self, job: dict[str, Any] | None) -> list[str]:
        self._done += 1
        if job is None:
            return []
        named = job["wildcards"]
        errors = {file: error for file in _statuses(job["output"]) if (error := _error(file)) is not None}
        if "repeat" in named:
            result = f"failed: {next(iter(errors.values()))}" if errors else "ok"
            run = f"{named['study']}/{shown_variant(named['variant'])} run{named['repeat']}"
            return [f"{run} {result} ({self._how_far()})"]
        pages = [f"page: {Path(file).resolve()}" for file in job["output"] if file.endswith(".html") and file != _INDEX]
        lines = [*pages, *(f"{'/'.join(file.parts[1:-1])}: {error}" for file, error in errors.items())]
        if not lines and self._done < self._total and time.monotonic() - self._said >= _QUIET_S:
            lines = [f"{job['rule_name']} ended ({self._how_far()})"]
        return lines

    def _how_far(self) -> str:
        """The jobs that have ended, and the time left."""
        self._said = time.monotonic()
        left = rough_duration(self._left.seconds(self._said) or 0.0, in_tens=True)
        return f"{self._done} of {self._total} jobs, about {left} left"

    def _not_made(self, content: dict[str, Any]) -> None:
        """Remember a job that failed. A supervised training never does, and the verdict says itself why it fails."""
        job = self._jobs.pop(content.get("jobid", -1), None)
        if job is not None:
            self._left.end(content["jobid"], time.monotonic())
        if job is not None and not any(file.startswith("results/.cache/") for file in job["output"]):
            log = ", ".join(job.get("log") or ()) or "none"
            self._not_written.append(f"{', '.join(job['output'])} was not made; log: {log}")


def _statuses(output: Sequence[str]) -> Iterator[Path]:
    """The status of what a job has supervised: of a run, or of a check of every variant."""
    for file in map(Path, output):
        if file.stem in _CHECKS:
            yield from sorted(file.parent.glob(f"*/{file.stem}/status.json"))
        elif file.name == "status.json":
            yield file


def _error(file: Path) -> str | None:
    from steptrace.run_folder import read_status  # not needed where there is nothing to do

    try:
        return read_status(file.parent).error
    except SteptraceError as error:
        return str(error)
