"""What the rules share: the plan, made while this file is read, and one lock for the working directory."""

import atexit
import os
import sys
from pathlib import Path

from filelock import FileLock, Timeout

from steptrace.config.gpus import visible_gpus
from steptrace.config.plan import make_plan
from steptrace.errors import SteptraceError
from steptrace.root import ROOT
from steptrace.terminal import printable
from steptrace.workflow.rules import (
    ALL_CORES,
    CHECKS,
    ENDING,
    Rules,
    forget_failures,
    names,
)

# Held as long as this process lives, so that there is nothing to unlock after a crash. Who does not get it changes
# nothing while this file is read, and is refused as it starts.
LOCK = FileLock("results/.cache/running.lock")


def stop(error):
    """End Snakemake with one message instead of a traceback."""
    sys.stderr.write(printable(f"steptrace: error: {error}\n"))
    sys.stderr.flush()
    os._exit(2)


try:
    PLAN = make_plan(ROOT, Path.cwd(), config, write=False)
    Path(LOCK.lock_file).parent.mkdir(parents=True, exist_ok=True)
    atexit.register(PLAN.cache.save)  # half of the time of a call with nothing to do
    LOCK.acquire(blocking=False)
    PLAN.write_snapshots()
    forget_failures(PLAN.studies)
except Timeout:
    pass  # a job's process reads this file, too
except SteptraceError as error:
    stop(error)
except OSError as error:
    stop(
        f"{Path(error.filename or '.').absolute()}: {error.strerror}\n  expected: a folder that this user may write to"
    )

STUDIES = list(PLAN.studies)
TRACES = list(PLAN.settings.traces)
RULES = Rules(PLAN, local=workflow.global_resources["_nodes"].value is None)
# No limit on a resource means no limit at all: trainings would share a GPU. A user's --resources gpu=N goes first.
if RULES.local and "gpu" not in workflow.global_resources:
    workflow.register_resource("gpu", max(len(visible_gpus()), 1))

# Where commands find things. Not params: a moved checkout or environment is no reason to run anything again.
os.environ |= {
    "STEPTRACE_PYTHON": sys.executable,
    "STEPTRACE_SCRIPTS": str(ROOT / "workflow" / "scripts"),
    "STEPTRACE_EXTENSION": str(ROOT / "ext" / "giou"),
    "STEPTRACE_TIMEOUT_S": str((PLAN.settings.timeout_minutes or 0) * 60),
    "STEPTRACE_GIOU_LIBRARY": os.environ.get("STEPTRACE_GIOU_LIBRARY")
    or str(Path("results/extension").resolve()),
}


wildcard_constraints:
    study=names(STUDIES),
    variant=names(dict.fromkeys(variant for _, variant in PLAN.pairs)),
    trace=names(TRACES),


onstart:
    if (
        RULES.lacks_gpu()
    ):  # before anything is touched: failures would replace an earlier run's results
        stop(
            "scale=gpu trains on a GPU, and there is none\n  next: use scale=cpu, or scale=auto"
        )
    try:
        LOCK.acquire(timeout=5)  # a dry run holds it for a moment
    except Timeout:
        stop(
            f"another run is at work in {Path.cwd()}\n  next: wait for it, or use --directory"
        )
