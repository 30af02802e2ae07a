"""What is done before the first job: the plan is made while the Snakefile is read; then the lock is taken."""

import atexit
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from filelock import FileLock, Timeout

from steptrace.config.plan import RESULTS, make_plan
from steptrace.errors import SteptraceError
from steptrace.format import printable
from steptrace.root import ROOT
from steptrace.workflow.rules import Rules

#: Held as long as this process lives, so that there is nothing to unlock after a crash.
LOCK: Final = FileLock(Path(RESULTS, ".cache", "running.lock"))


def stop(error: object) -> NoReturn:
    """End Snakemake with one message instead of a traceback."""
    sys.stderr.write(printable(f"steptrace: error: {error}\n"))
    sys.stderr.flush()
    os._exit(2)


def begin(config: Mapping[str, Any]) -> Rules:
    """Plan what `--config` and the files ask for; nothing is written but what later calls remember."""
    try:
        plan = make_plan(ROOT, Path.cwd(), config, write=False)
    except SteptraceError as error:
        stop(error)
    atexit.register(plan.cache.save)  # half of the time of a call with nothing to do
    return Rules(plan)


def before_the_first_job(rules: Rules, *, gpus_here: bool) -> None:
    """Take the lock, or refuse to start, and write what the jobs read. A dry run does not come here."""
    if gpus_here and rules.lacks_gpu():  # before anything is touched: failures would replace an earlier run's results
        cluster = "on a cluster set how many GPUs to use: --resources gpu=N"
        stop(f"scale=gpu needs a GPU, and none was found\n  next: use scale=cpu, or scale=auto; {cluster}")
    try:
        LOCK.acquire(blocking=False)
        rules.plan.write_snapshots()
    except Timeout:
        stop(f"another snakemake is running in {Path.cwd()}\n  next: wait until it ends, or use --directory DIR")
    except OSError as error:
        place = Path(error.filename or ".").absolute()
        stop(f"{place}: {error.strerror}\n  expected: a folder that this user may write to")
