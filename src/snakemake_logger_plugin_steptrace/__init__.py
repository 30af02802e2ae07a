"""`snakemake --logger steptrace`: which run of which study has ended, how many are left, and about how long it takes.

What Snakemake says of its own work (jobs selected, started and finished, by number) is left out, but for warnings and
errors, and under --verbose. The last line says which share of the time each kind of job took; so does
results/timing.json. A dry run counts the jobs; with `--quiet host` it lists them all, as Snakemake does.
"""

import logging
import os
import sys

from snakemake.settings.enums import Quietness
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from steptrace.files import write_versioned
from steptrace.progress import BRIEF, TIMING, Progress, job_of, summary
from steptrace.terminal import printable

#: Of Snakemake's own words at a level below a warning.
_SAID = ("Nothing to be done", "Unlocking", "Complete log", "Will exit", "Trying to restart")


class LogHandler(LogHandlerBase):
    """What Snakemake looks for in a logger plugin."""

    writes_to_stream = True
    writes_to_file = False
    has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        """Ask supervisors for no lines of their own about runs that soon end."""
        self._progress: Progress | None = None
        self._stream = sys.stdout if self.common_settings.stdout else sys.stderr
        if self.has_filter:
            os.environ[BRIEF] = "1"
        if self.common_settings.dryrun and self._quiet("RULES"):
            # Or Snakemake would prepare what it says of each job, which takes longer than finding out what to run.
            self.common_settings.quiet = {*self.common_settings.quiet, Quietness.PROGRESS}

    @property
    def has_filter(self) -> bool:
        """False where everything is said as Snakemake says it."""
        return not (self.common_settings.verbose or (self.common_settings.dryrun and not self._quiet("PROGRESS")))

    def emit(self, record: logging.LogRecord) -> None:
        """Say what a record means, if anything."""
        event = getattr(record, "event", None)
        if not self.has_filter:
            lines = [self.format(record)]
        elif record.levelno >= logging.WARNING:
            of_rule = event in (LogEvent.JOB_ERROR, LogEvent.GROUP_ERROR)
            lines = [] if of_rule and self._quiet("RULES") else [self.format(record)]
        elif event is None:
            lines = [self.format(record)] if str(record.msg).startswith(_SAID) else []
        else:
            lines = self._of_event(event, record)
        if lines and not self._quiet("ALL"):
            self._stream.write("".join(f"{printable(line)}\n" for line in lines if line))
            self._stream.flush()

    def close(self) -> None:
        """Say and write where the time went."""
        super().close()
        progress, self._progress = self._progress, None
        if progress is not None:
            timing = progress.timing()
            write_versioned(TIMING, timing)
            self._stream.write(f"steptrace: {summary(timing)}\n")

    def _quiet(self, about: str) -> bool:
        return any(chosen.name == about for chosen in self.common_settings.quiet or ())

    def _of_event(self, event: LogEvent, record: logging.LogRecord) -> list[str]:
        told = record.__dict__
        now = round(record.created * 1e9)
        if event == LogEvent.RUN_INFO and self.common_settings.dryrun:
            return [self.format(record)]
        if event == LogEvent.RUN_INFO:
            self._progress = Progress(now)
            return self._progress.plan(told["stats"])
        if self._progress is None:
            return []
        self._progress.now = now
        if event == LogEvent.JOB_INFO:
            job = job_of(told["rule_name"], dict(told["wildcards"]), tuple(told["output"]), now)
            if job is not None:
                self._progress.start(told["jobid"], job)
        elif event == LogEvent.JOB_FINISHED:
            return self._progress.end(told["job_id"])
        elif event == LogEvent.SHELLCMD and self.common_settings.printshellcmds:
            return [self.format(record)]
        return []
