"""What the rules share: the plan, made while this file is read, and one lock for the working directory."""

import os
import sys

from steptrace.machine import visible_gpus
from steptrace.processes import WORKFLOW
from steptrace.root import ROOT
from steptrace.workflow.rules import (
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

# No limit on a resource means no limit at all: trainings would share a GPU. A limit that is given goes first, such as
# --resources gpu=1, or that of a cluster's profile: there the GPUs need not be this machine's.
GPUS_HERE = "gpu" not in workflow.global_resources
if GPUS_HERE:
    workflow.register_resource("gpu", max(len(visible_gpus()), 1))

# Where commands find things. Not params: a moved checkout or environment is no reason to run anything again.
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
