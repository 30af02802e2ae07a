"""What the rules share: the plan made while this file is read, and the machine. What they ask is steptrace.workflow.rules."""

import atexit
import os
import subprocess
import sys
import time
from pathlib import Path

from psutil import virtual_memory

from steptrace.config.digest import extension_digests
from steptrace.config.gpus import count_gpus
from steptrace.config.plan import make_plan
from steptrace.errors import SteptraceError
from steptrace.files import UNWRITABLE
from steptrace.terminal import printable
from steptrace.workflow.resume import keep_finished
from steptrace.train import fork_client
from steptrace.train.devices import holder, try_lock
from steptrace.train.process_tree import CALL_VARIABLE, WORKDIR_VARIABLE, end_leftovers
from steptrace.workflow.unreadable import set_aside_unreadable
from steptrace.workflow.rules import (
    CHECKS,
    ENDING,
    LOCK,
    Machine,
    Rules,
    names,
    of_study,
    of_variant,
)

# What is used of Snakemake's `workflow` object beyond its documentation, and why:
#   current_basedir      where this file is: Snakefiles of other folders use this workflow as a module
#   is_main_process      the processes of its jobs read this file, too, and must not write the snapshots again
#   output_settings.dryrun
#                        known while this file is read, as workflow.dryrun is not
#   global_resources, register_resource, resource_settings.cores
#                        no limit on a resource means no limit at all: one-GPU trainings would share a GPU. "_nodes" of
#                        the former is None where jobs run here; `workflow.cores` cannot be read under --unlock
ROOT = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1]
STARTED = time.time()
WORKDIR = Path.cwd()


def say(text):
    sys.stderr.write(printable(f"steptrace: {text}\n"))


def stop(error):
    """End Snakemake with one message instead of a traceback."""
    say(f"error: {error}")
    sys.exit(2)


def another_run():
    """What to say of the process that holds the lock."""
    return f"another run (process {holder(LOCK)}) is at work in {Path.cwd()}; wait for it, or use --directory"


def refuse(error):
    """End where this user may not write."""
    if error.errno not in UNWRITABLE:
        stop(error)
    place = Path(error.filename or "").absolute()
    stop(
        f"{place}: {error.strerror}\n  expected: a folder whose results/ and .snakemake/ this user may write to\n"
        "  next: work in a copy of the folder, or let a group share it: umask 002, chmod -R g+rwX\n"
        "  to look only: snakemake --summary with the --config of the results, reports/index.html"
    )


def can_be_summarised():
    """Whether a user who may not write can see what is up to date, unless by a dry run, in which Snakemake writes."""
    # Snakemake opens its records to owner and group.
    record = next(Path(".snakemake/metadata").glob("*"), None)
    readable = record is None or os.access(record, os.R_OK)
    return (
        readable
        and not workflow.output_settings.dryrun
        and not PLAN.changes_snapshots()
    )


def write_snapshots():
    """Not under a run that is at work: its trainings to come would read another configuration than it planned."""
    try:
        free = try_lock(LOCK)
    except OSError as error:
        if error.errno in UNWRITABLE and can_be_summarised():
            return  # a run is refused as it starts
        raise
    if free is not None:
        for sentence in set_aside_unreadable(Path.cwd()):
            say(sentence)
        os.close(free)
    elif PLAN.changes_snapshots():
        stop(f"{another_run()}\n  it was started under another configuration")
    PLAN.write_snapshots()


try:
    PLAN = make_plan(ROOT, Path.cwd(), config, write=False)
    PLAN.check_targets(sys.argv[1:])  # Snakemake has not read the targets yet
    if workflow.is_main_process:
        write_snapshots()
        atexit.register(PLAN.keep_files_read)
except SteptraceError as error:
    stop(error)
except OSError as error:
    refuse(error)

STUDIES = list(PLAN.studies)
TRACES = list(PLAN.settings.traces)
EXTENSION = ROOT / "ext" / "giou"
EXTENSION_DIGESTS = extension_digests(EXTENSION)

# Where commands find things. Not params: a moved checkout or environment is no reason to run anything again.
os.environ.update(
    {
        "STEPTRACE_PYTHON": sys.executable,
        "STEPTRACE_PARENT": str(os.getpid()),  # a training lives no longer
        WORKDIR_VARIABLE: str(Path.cwd()),
        CALL_VARIABLE: f"{os.getpid()} {STARTED}",
        "STEPTRACE_SCRIPTS": str(ROOT / "workflow" / "scripts"),
        "STEPTRACE_TIMEOUT_S": str((PLAN.settings.timeout_minutes or 0) * 60),
        "STEPTRACE_EXTENSION": str(EXTENSION),
    }
)
os.environ.setdefault(
    "STEPTRACE_GIOU_LIBRARY", str(Path("results/extension").resolve())
)


wildcard_constraints:
    study=names(STUDIES),
    variant=names(dict.fromkeys(variant for _, variant in PLAN.pairs)),
    repeat=names(range(PLAN.repeats)),
    trace=names(TRACES),


# Resources. A timed training has its device to itself, a CPU training the whole machine, and nothing else runs beside
# either: by `threads` where one training at a time takes all cores, by `quiet` where several GPUs train at once. Jobs of
# this process are forked (steptrace.train.fork_server); a cluster's node has one job to start.
RULES = Rules(
    PLAN,
    Machine(
        local=workflow.global_resources["_nodes"].value is None,
        cores=workflow.resource_settings.cores or os.cpu_count(),
        gpus=count_gpus(),
    ),
)
QUIET = RULES.machine.quiet
if RULES.machine.local:
    if "gpu" not in workflow.global_resources:  # a user's --resources gpu=N goes first
        workflow.register_resource("gpu", max(RULES.machine.gpus, 1))
    workflow.register_resource("quiet", QUIET)
    if "mem_mb" not in workflow.global_resources:
        workflow.register_resource("mem_mb", virtual_memory().available >> 20)
    os.environ[fork_client.VARIABLE] = str(int(workflow.is_main_process))


def at_the_end():
    """Of a run without success, however it ends: Snakemake calls no `onerror` where Ctrl-C finds it at a bad moment."""
    os.chdir(WORKDIR)  # under --directory, Snakemake has gone back by now
    # What was cut off leaves pages of what there is; nothing where every study is done and only a verdict failed.
    subprocess.run([sys.executable, ROOT / "workflow" / "scripts" / "partial.py"])
    # Snakemake's own last lines say less than these, so these come after them.
    for line in RULES.closing_lines(STARTED):
        say(line)


onstart:
    # Held until this process ends, however it ends: nothing to unlock after a crash. Snakemake's own lock is off.
    try:
        RUNNING = try_lock(LOCK)
    except OSError as error:
        refuse(error)
    if RUNNING is None:
        stop(another_run())
    if ended := end_leftovers(Path.cwd()):
        say(f"processes left here by a killed run, now ended: {ended}")
    # Before anything is touched: an earlier run's results would make way for a list of failures.
    if RULES.no_gpu_for_any():
        stop(
            f"scale={PLAN.settings.scale} trains on a GPU, and there is none that this process may use\n"
            "  next: use scale=cpu, or scale=auto"
        )
    asked = workflow.dag_settings  # -F, -f and -R
    forced = asked.forceall or asked.forcetargets or bool(asked.forcerun)
    keep_finished(Path.cwd(), forced=forced)
    atexit.register(at_the_end)
    atexit.register(end_leftovers, WORKDIR)  # such as fork servers


onsuccess:
    atexit.unregister(at_the_end)
    say(f"report: {Path.cwd() / 'reports' / 'index.html'}")
