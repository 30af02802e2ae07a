"""Shared by all rules: the plan, which is made while this file is read, and the lock of the working directory."""

import importlib.util
import marshal
import os
import sys
from pathlib import Path


def remove_cut_off_bytecode():
    """Remove truncated .pyc files of steptrace, which Python before 3.12.8 leaves behind when the disk is full.

    Every later job that imports one of them would fail.
    """
    package = Path(importlib.util.find_spec("steptrace").origin).parent
    for file in package.rglob(f"*.{sys.implementation.cache_tag}.pyc"):
        try:
            marshal.loads(file.read_bytes()[16:])
        except OSError:
            continue  # another call has just replaced it
        except (EOFError, ValueError, TypeError):
            file.unlink(missing_ok=True)


remove_cut_off_bytecode()  # before the first import of steptrace

from steptrace.machine import visible_gpus
from steptrace.processes import WORKFLOW
from steptrace.root import ROOT
from steptrace.workflow.snakemake_plan import (
    ALL_CORES,
    CHECKS,
    ENDING,
    VARIANT_CHECKS,
    before_the_first_job,
    begin,
    correct_list_of_changes,
    force_where_unrecorded,
    names,
)

RULES = begin(config)
PLAN = RULES.plan
STUDIES = list(PLAN.studies)
TRACES = list(PLAN.settings.traces)
if workflow.is_main_process:
    force_where_unrecorded(RULES, workflow)
    correct_list_of_changes()

# Without a limit on the resource `gpu`, trainings would share a GPU. A limit that the user has set takes precedence,
# such as --resources gpu=1 or that of a cluster's profile, where the GPUs may be on other machines.
GPUS_HERE = "gpu" not in workflow.global_resources
if GPUS_HERE:
    workflow.register_resource("gpu", max(len(visible_gpus()), 1))

# Paths for the commands. They are not params, so that nothing runs again after a checkout or environment has moved.
os.environ |= {
    "STEPTRACE_PYTHON": sys.executable,
    WORKFLOW: str(os.getpid()),
    "STEPTRACE_SCRIPTS": str(ROOT / "workflow" / "scripts"),
    "STEPTRACE_TIMEOUT_S": str((PLAN.settings.timeout_minutes or 0) * 60),
    **RULES.variables(),
}


wildcard_constraints:
    study=names(STUDIES),
    preparation=names(PLAN.preparations),
    variant=names(dict.fromkeys(variant for _, variant in PLAN.variants)),
    trace=names(TRACES),


onstart:
    before_the_first_job(RULES, gpus_here=GPUS_HERE)
