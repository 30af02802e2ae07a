"""What the rules share: the plan made while this file is read, and the helpers that look things up in it."""

import atexit
import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path

from steptrace.config.digest import versions
from steptrace.config.gpus import count_gpus
from steptrace.config.plan import make_plan
from steptrace.errors import SteptraceError
from steptrace.train.devices import holder, try_lock
from steptrace.train.torchrun import launcher
from steptrace.verdict import ending

ROOT = Path(workflow.basedir)
STARTED = time.time()


def say(text):
    sys.stderr.write(f"steptrace: {text}\n")


def stop(error):
    """End Snakemake with one message instead of a traceback."""
    say(f"error: {error}")
    sys.exit(2)


LOCK = Path("results/.cache/running.lock")


def another_run():
    """What to say of the process that holds the lock."""
    return f"another run (process {holder(LOCK)}) is at work in {Path.cwd()}; wait for it, or use --directory"


def write_snapshots():
    """Not under a run that is at work: its trainings to come would read another configuration than it planned."""
    free = try_lock(LOCK)
    if free is not None:
        os.close(free)
    elif PLAN.changes_snapshots():
        stop(f"{another_run()}\n  it was started under another configuration")
    PLAN.write_snapshots()


try:
    PLAN = make_plan(ROOT, Path.cwd(), config, write=False)
    PLAN.check_targets(sys.argv[1:])  # Snakemake has not read the targets yet
    if workflow.is_main_process:  # the processes of its jobs find them written
        write_snapshots()
except (SteptraceError, OSError) as error:
    stop(error)

STUDIES = list(PLAN.studies)
TRACES = {trace.name: trace.path for trace in PLAN.settings.traces}

# Where commands find things. Not params: a moved checkout or environment is no reason to run anything again.
os.environ.update(
    {
        "STEPTRACE_PYTHON": sys.executable,
        "STEPTRACE_SCRIPTS": str(ROOT / "workflow" / "scripts"),
        "STEPTRACE_TIMEOUT_S": str((PLAN.settings.timeout_minutes or 0) * 60),
    }
)


def names(known):
    """A wildcard constraint that matches these names and no other."""
    return "|".join(map(re.escape, known)) or "(?!)"


wildcard_constraints:
    study=names(STUDIES),
    variant=names(dict.fromkeys(variant for _, variant in PLAN.pairs)),
    repeat=names(map(str, range(PLAN.repeats))),
    trace=names(TRACES),


# Resources. A timed training has its device to itself, a CPU training the whole machine, and nothing else runs beside
# either: by `threads` where one training at a time takes all cores, by `quiet` where several GPUs train at once (each
# training takes one, anything else takes all).
LOCAL = workflow.global_resources["_nodes"].value is None
CORES = workflow.resource_settings.cores or os.cpu_count()
GPUS = count_gpus()
QUIET = GPUS if LOCAL and GPUS > 1 else 0
if LOCAL:
    # Snakemake knows no limit unless one is given, and would start as many one-GPU trainings as there are cores.
    if "gpu" not in workflow.global_resources:
        workflow.register_resource("gpu", max(GPUS, 1))
    workflow.register_resource("quiet", QUIET)


def device(wildcards):
    return PLAN.variant(wildcards.study, wildcards.variant).config["device"]


def ranks(wildcards):
    return PLAN.variant(wildcards.study, wildcards.variant).config["distributed"][
        "world_size"
    ]


def gpus_of_training(wildcards):
    if device(wildcards) != "cuda":
        return 0
    # With fewer than it needs a local run starts all the same: it then fails, saying so, and the others go on.
    return min(ranks(wildcards), max(GPUS, 1)) if LOCAL else ranks(wildcards)


def gpus_of_equivalence(wildcards):
    # On this machine the check asks for the GPU itself, for as long as the variant computes on it: the float64
    # reference is the longer part, and runs on the CPU.
    return 1 if device(wildcards) == "cuda" and not LOCAL else 0


def threads_of_training(wildcards):
    if not LOCAL:
        # What the cluster is asked for, per rank: the loader's workers, the training and the autograd thread.
        data = PLAN.variant(wildcards.study, wildcards.variant).config["data"]
        return ranks(wildcards) * (data["num_workers"] + 2)
    if device(wildcards) != "cuda":
        return CORES
    return max(1, CORES // max(GPUS, 1) * gpus_of_training(wildcards))


def quiet_of_training(wildcards):
    if device(wildcards) != "cuda":
        return QUIET
    return min(QUIET, gpus_of_training(wildcards))


# Digests and attempts: what makes a rule run again besides its input.
def train_digest(kind):
    return lambda wildcards: PLAN.train_digests(wildcards.study, wildcards.variant)[
        kind
    ]


def equivalence_digest(kind):
    return lambda wildcards: PLAN.equivalence_digests(
        wildcards.study, wildcards.variant
    )[kind]


def prediction_digest(kind):
    return lambda wildcards: PLAN.prediction_digests(
        wildcards.study, wildcards.variant
    )[kind]


def train_attempt(wildcards):
    digests = PLAN.train_digests(wildcards.study, wildcards.variant)
    return PLAN.attempt(
        wildcards.study, wildcards.variant, f"run{wildcards.repeat}", digests
    )


def equivalence_attempt(wildcards):
    digests = PLAN.equivalence_digests(wildcards.study, wildcards.variant)
    return PLAN.attempt(wildcards.study, wildcards.variant, "equivalence", digests)


# Files.
def run_files(name):
    runs = [
        (study, variant, k)
        for study, variant in PLAN.pairs
        for k in range(PLAN.repeats)
    ]
    return [f"results/{study}/{variant}/run{k}/{name}" for study, variant, k in runs]


def variant_files(name):
    return [f"results/{study}/{variant}/{name}" for study, variant in PLAN.pairs]


STATUS_FILES = [
    *run_files("status.json"),
    *variant_files("equivalence/status.json"),
    *variant_files("prediction/status.json"),
]


def of_study(files):
    """An input function: those of `files` that belong to the study."""
    return lambda wildcards: [
        file for file in files if file.startswith(f"results/{wildcards.study}/")
    ]


def standing():
    """Comparisons of studies that do not run now but whose pages are there: a narrowed call keeps them in the index."""
    return [
        f"results/{study}/comparison.json"
        for study in sorted(PLAN.project.study_files)
        if study not in STUDIES
        and Path(f"results/{study}/comparison.json").is_file()
        and Path(f"reports/{study}.html").is_file()
    ]


def gates_of(wildcards):
    """The gates of one study, in the form of `gates:`, as JSON."""
    study = wildcards.study
    return json.dumps(
        {study: PLAN.settings.gates[study]} if study in PLAN.settings.gates else {}
    )


def reference(wildcards):
    return f"results/{wildcards.study}/{PLAN.variant(wildcards.study, wildcards.variant).reference}"


# The extension: compiled operators that some losses are made of.
EXTENSION = ROOT / "ext" / "giou"
#: A loss from here is made of the extension's operators.
OPERATORS = "steptrace.workloads.giou_kernels."

# Where the build finds its Python side, and a training the library.
os.environ.update({"STEPTRACE_EXTENSION": str(EXTENSION)})
os.environ.setdefault(
    "STEPTRACE_GIOU_LIBRARY", str(Path("results/extension").resolve())
)


def extension(wildcards):
    """What a variant has to wait for: the extension's status if its loss comes from there, whatever that status is."""
    loss = PLAN.variant(wildcards.study, wildcards.variant).config["loss"]
    return (
        "results/extension/status.json"
        if loss["_target_"].startswith(OPERATORS)
        else []
    )


def extension_digests():
    """Every byte of the sources, and torch's version. The loader asks for a library of these very bytes."""
    total = hashlib.sha256()
    for path in sorted(
        [*EXTENSION.glob("csrc/*"), *EXTENSION.glob("python/steptrace_giou/*.py")]
    ):
        total.update(b"%b\0%b\0" % (path.name.encode(), path.read_bytes()))
    return {"config": versions(["torch"])["torch"], "code": total.hexdigest()[:16]}


EXTENSION_DIGESTS = extension_digests()


def broken_gates():
    """What to say where all went well but for gates; None if this run has not come to judge them, or more is wrong."""
    try:
        if Path("results/enforce.log").stat().st_mtime < STARTED:
            return None
        verdict = json.loads(Path("results/verdict.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return ending(verdict, Path.cwd())


def last_words():
    """What a run that failed says at its very end."""
    missing = [file for file in STATUS_FILES if not Path(file).exists()]
    if missing:
        say(
            f"{len(missing)} runs were not finished, among them {Path(missing[0]).parent}"
        )
    gates = broken_gates()
    if gates:
        say(
            gates
        )  # it names the page, and the same command again would break them again
        return
    if Path("reports/index.html").exists():
        say(f"report: {Path.cwd() / 'reports' / 'index.html'}")
    say("the same command again runs only what failed or is missing")


onstart:
    # Held until this process ends, however it ends: nothing to unlock after a crash. Snakemake's own lock is off.
    RUNNING = try_lock(LOCK)
    if RUNNING is None:
        stop(another_run())
    # Before anything is touched: an earlier run's results would make way for a list of failures.
    devices = {PLAN.variant(*pair).config["device"] for pair in PLAN.pairs}
    if LOCAL and not GPUS and devices == {"cuda"}:
        stop(
            f"scale={PLAN.settings.scale} trains on a GPU, and there is none that this process may use\n"
            "  next: use scale=cpu, or scale=auto"
        )


onsuccess:
    say(f"report: {Path.cwd() / 'reports' / 'index.html'}")


onerror:
    # Snakemake has lines of its own to add, which say less: what helps is the last to be read.
    atexit.register(last_words)
