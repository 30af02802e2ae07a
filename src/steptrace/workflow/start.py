"""What is done while the Snakefile is read: the plan, the lock of the working directory, and failures to try again."""

import atexit
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock, Timeout

from steptrace.config.plan import RESULTS, make_plan
from steptrace.errors import SteptraceError
from steptrace.root import ROOT
from steptrace.terminal import printable
from steptrace.workflow.rules import Rules, failures, forget

#: Held as long as this process lives, so that there is nothing to unlock after a crash. Who does not get it, such as a
#: job's process, changes nothing while the Snakefile is read.
LOCK = FileLock(Path(RESULTS, ".cache", "running.lock"))


def stop(error: object) -> NoReturn:
    """End Snakemake with one message instead of a traceback."""
    sys.stderr.write(printable(f"steptrace: error: {error}\n"))
    sys.stderr.flush()
    os._exit(2)


def begin(config: Mapping[str, Any], *, dry_run: bool) -> Rules:
    """Plan, write the snapshots, and remove the statuses of failures; a dry run changes nothing.

    Args:
        config: what `--config` says.
        dry_run: whether jobs are only shown.
    """
    try:
        plan = make_plan(ROOT, Path.cwd(), config, write=False)
        atexit.register(plan.cache.save)  # half of the time of a call with nothing to do
        failed = failures(plan.studies)
        if dry_run:
            return Rules(plan, frozenset(failed))
        Path(LOCK.lock_file).parent.mkdir(parents=True, exist_ok=True)
        try:
            LOCK.acquire(blocking=False)
        except Timeout:
            return Rules(plan)
        plan.write_snapshots()
        forget(failed)
        return Rules(plan)
    except SteptraceError as error:
        stop(error)
    except OSError as error:
        place = Path(error.filename or ".").absolute()
        stop(f"{place}: {error.strerror}\n  expected: a folder that this user may write to")


def take_lock(rules: Rules, *, gpus_here: bool) -> None:
    """Refuse to start where another run is at work, or where nothing could be trained."""
    if gpus_here and rules.lacks_gpu():  # before anything is touched: failures would replace an earlier run's results
        cluster = "on a cluster set how many GPUs to use: --resources gpu=N"
        stop(f"scale=gpu needs a GPU, and none was found\n  next: use scale=cpu, or scale=auto; {cluster}")
    try:
        LOCK.acquire(timeout=5)  # whoever only reads the Snakefile holds it for a moment
    except Timeout:
        stop(f"another snakemake is running in {Path.cwd()}\n  next: wait until it ends, or use --directory DIR")
