"""What the Snakefile's rules need: input and output files, resources, priorities, and keys that make a rule run again.

The plan is made while the Snakefile is read; this writes and removes nothing in the working directory. Before the
first job the lock is taken, and the files that the jobs read are written. Methods of `SnakemakePlan` that take
`wildcards` are Snakemake's input, params and resources functions. Paths are relative to the working directory, as
Snakemake's are.
"""

import atexit
import contextlib
import json
import os
import re
import shlex
import sys
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn, get_args

import msgspec
from filelock import FileLock, Timeout

from steptrace.config.digest import key_of
from steptrace.config.plan import RESULTS, Plan, make_plan
from steptrace.config.resolved import GPU_CONFIG
from steptrace.documents.run import Check
from steptrace.errors import SteptraceError
from steptrace.format import printable
from steptrace.machine import visible_gpus
from steptrace.root import ROOT
from steptrace.run_folder import RUN_FILE, STATUS_FILE
from steptrace.tasks import Task, write_tasks
from steptrace.workflow.made import State, state_of

#: The lock of the working directory. It is held until this process ends, so it needs no unlocking after a crash.
LOCK: Final = FileLock(RESULTS / ".cache" / "running.lock")
#: Asks Snakemake for all cores: it limits a job to what there is, or to `max-threads` of a cluster's profile.
ALL_CORES: Final = 1024
#: Priority of the jobs that finish a study: they run before any other job that is ready.
ENDING: Final = 1_000_000
#: Stage of checks, which come after the trainings of a study.
CHECKS: Final = 50
#: The checks of a study; each is one job for all variants.
VARIANT_CHECKS: Final[tuple[Check, ...]] = get_args(Check)
#: The most damaged results that are named.
_MOST_LINES: Final = 5


@dataclass(frozen=True)
class SnakemakePlan:
    """The plan, with the functions that the rules call."""

    plan: Plan
    _states: dict[str, State] = field(default_factory=dict, repr=False)

    def runs(self, name: str, study: str | None = None) -> list[str]:
        """The paths of a file in every run of every variant, of one study or of all."""
        repeats = range(self.plan.settings.repeats)
        pairs = [pair for pair in self.plan.variants if study in (None, pair[0])]
        return [f"results/{s}/{v}/run{repeat}/{name}" for s, v in pairs for repeat in repeats]

    def runs_of_variant(self, name: str) -> list[str]:
        """The paths of a file in every run of one variant, with wildcards for study and variant."""
        return [f"results/{{study}}/{{variant}}/run{repeat}/{name}" for repeat in range(self.plan.settings.repeats)]

    def prepared(self, wildcards: Any = None) -> list[str]:
        """The status files of the preparations that a variant needs, or a study, or without wildcards any variant."""
        study, variant = (getattr(wildcards, name, "") for name in ("study", "variant"))
        needs = [
            need
            for (s, v), chosen in self.plan.variants.items()
            if study in ("", s) and variant in ("", v)
            for need in chosen.needs
        ]
        return [f"{self.plan.preparations[need].folder}/{STATUS_FILE}" for need in dict.fromkeys(needs)]

    def prepares(self, wildcards: Any) -> str:
        """The command of a preparation, quoted for a shell."""
        chosen = self.plan.preparations[wildcards.preparation]
        variables = [f"{name}={value}" for name, value in chosen.env.items()]
        return shlex.join([*(["env", *variables] if variables else []), *chosen.command])

    def variables(self) -> dict[str, str]:
        """The environment variables that preparations define; the user's own values take precedence."""
        defined = [preparation.gives for preparation in self.plan.preparations.values()]
        return {name: os.environ.get(name) or value for values in defined for name, value in values.items()}

    # What makes a rule run again, besides its input files.
    @cached_property
    def tasks(self) -> dict[str, Task]:
        """Every task of the plan by name, with the attempt number of its state."""
        tasks = {task.name: task for task in self._tasks()}
        return {name: msgspec.structs.replace(task, attempt=self.state(task).attempt) for name, task in tasks.items()}

    def state(self, task: Task) -> State:
        """Whether a task has to run; looked up once, so that it does not change during a call of Snakemake."""
        if task.name not in self._states:
            self._states[task.name] = state_of(task)
        return self._states[task.name]

    def attempt(self, name: str) -> Any:
        """A params function whose value changes whenever a task has to run again; `name` may have wildcards."""
        return lambda wildcards: f"attempt {self.tasks[name.format(**wildcards)].attempt}"

    def to_force(self) -> list[str]:
        """Outputs that have to be made again and that Snakemake would not, since it has no record of them."""
        again = [task for task in self.tasks.values() if self.state(task).reason]
        return [file for task in again if not all(map(_has_record, task.outputs)) for file in task.outputs]

    def damage(self) -> list[str]:
        """One line for each damaged result, up to `_MOST_LINES`, and one for the rest."""
        states = [(task, self.state(task)) for task in self.tasks.values()]
        damaged = [(task.name, state.file) for task, state in states if state.reason == "damaged"]
        lines = [f"{name} is made again: {file} is missing or damaged" for name, file in damaged[:_MOST_LINES]]
        more = len(damaged) - _MOST_LINES
        return [*lines, f"... and {more} more"] if more > 0 else lines

    def _tasks(self) -> Iterator[Task]:
        for preparation in self.plan.preparations.values():
            yield Task(
                name=preparation.folder,
                key=preparation.key,
                outputs=(f"{preparation.folder}/{STATUS_FILE}",),
                supervised=True,
                result=preparation.result,
            )
        for (study, variant), chosen in self.plan.variants.items():
            needs = tuple(self.plan.preparations[need].folder for need in chosen.needs)
            key = self.plan.key("training", study, variant)
            runs = range(self.plan.settings.repeats)
            folders = [f"results/{study}/{variant}/run{repeat}" for repeat in runs]
            for folder in folders:
                status = f"{folder}/{STATUS_FILE}"
                yield Task(name=folder, key=key, outputs=(status,), supervised=True, result=RUN_FILE, needs=needs)
            yield Task(
                name=f"results/{study}/{variant}/analysis",
                key=key_of([self.plan.code(script="analyze_runs"), str(self.plan.settings.repeats)]),
                inputs=tuple(f"{folder}/{STATUS_FILE}" for folder in folders),
                outputs=tuple(f"{folder}/{name}" for name in ("summary.json", "tables") for folder in folders),
            )
        for study in self.plan.studies:
            yield from self._tasks_of_study(study)
        for trace, path in self.plan.settings.traces.items():
            folder = f"results/traces/{trace}"
            outputs = (f"{folder}/summary.json", f"{folder}/report.html", f"{folder}/tables")
            yield Task(name=folder, key=key_of([self.trace_code, path]), inputs=(path,), outputs=outputs)
        comparisons = [f"results/{study}/comparison.json" for study in self.plan.studies]
        summaries = [f"results/traces/{trace}/summary.json" for trace in self.plan.settings.traces]
        unplanned = self.other_studies()
        yield Task(
            name="reports/index",
            key=key_of([self.report_code]),
            inputs=(*comparisons, *unplanned, *summaries),
            outputs=("reports/index.html",),
        )
        gates = json.dumps(self.plan.settings.gates)
        yield Task(
            name="results/verdict",
            key=key_of([self.plan.code(script="verdict"), gates]),
            inputs=(*comparisons, *self.baselines),
            outputs=("results/verdict.json",),
        )

    def _tasks_of_study(self, study: str) -> Iterator[Task]:
        variants = [variant for s, variant in self.plan.variants if s == study]
        checks = [f"results/{study}/{check}.json" for check in VARIANT_CHECKS]
        for check, file in zip(VARIANT_CHECKS, checks, strict=True):
            parts = {variant: self.plan.key(check, study, variant) for variant in variants}
            key = key_of([self.plan.code("steptrace.workflow.checks"), *parts, *parts.values()])
            yield Task(name=f"results/{study}/{check}", key=key, outputs=(file,), parts=parts)
        wildcards = SimpleNamespace(study=study)
        summaries = self.runs("summary.json", study)
        made_of = [self.study(wildcards), self.gates(wildcards), self.estimate_gpus, *self.own_gpus]
        comparison = f"results/{study}/comparison.json"
        yield Task(
            name=f"results/{study}/comparison",
            key=key_of([self.plan.code(script="compare"), *made_of]),
            inputs=(*self._snapshots(study), *self.runs(STATUS_FILE, study), *summaries, *checks, *self.baselines),
            outputs=(comparison,),
        )
        yield Task(
            name=f"reports/{study}",
            key=key_of([self.report_code]),
            inputs=(comparison, *summaries),
            outputs=(f"reports/{study}.html", f"reports/{study}.ipynb"),
        )

    def _snapshots(self, study: str) -> list[str]:
        """The files that `Plan.write_snapshots` writes for a study. It runs only before a first job."""
        planned = self.plan.studies[study]
        names = [f"{variant.name}/{file}" for variant in planned.variants for file in ("config.yaml", GPU_CONFIG)]
        return [f"results/{study}/{name}" for name in ("study.json", *names, *planned.references)]

    @cached_property
    def report_code(self) -> str:
        """Digest of the code that makes pages: the whole package `steptrace.report`, whose sections register by import.

        The library is part of it, since the cells of a notebook use it.
        """
        return self.plan.code("steptrace.report.*", "steptrace.library", script="report")

    @cached_property
    def trace_code(self) -> str:
        """Digest of the code that analyses a trace."""
        return self.plan.code("steptrace.cli", "steptrace.commands.analyze")

    @cached_property
    def own_gpus(self) -> list[str]:
        """The text of the user's gpus.toml; empty without that file."""
        return [Path("gpus.toml").read_text(encoding="utf-8") if Path("gpus.toml").is_file() else ""]

    def study(self, wildcards: Any) -> str:
        """Digest of the part of the plan that a comparison reads."""
        return key_of([self.plan.studies[wildcards.study].document()])

    @property
    def estimate_gpus(self) -> str:
        """The option that names the GPUs to estimate for; empty without any."""
        return shlex.join(["--gpu", *self.plan.settings.estimate_gpus]) if self.plan.settings.estimate_gpus else ""

    @property
    def predicted_gpu(self) -> str:
        """The option that names the GPU of predictions, the first of the GPUs to estimate for; empty without any."""
        gpus = self.plan.settings.estimate_gpus
        return shlex.join(["--for-gpu", gpus[0]]) if gpus else ""

    def gates(self, wildcards: Any) -> str:
        """The gates of one study, in the form of `gates:`, as JSON."""
        gates = self.plan.settings.gates
        return json.dumps({wildcards.study: gates[wildcards.study]} if wildcards.study in gates else {})

    @property
    def baselines(self) -> list[str]:
        """The comparison.json files that gates name and that exist; if one is missing, only its gate fails."""
        gates = self.plan.settings.gates
        limits = [limits for variants in gates.values() for keys in variants.values() for limits in keys.values()]
        files = dict.fromkeys(str(limit["baseline"]) for limit in limits if limit.get("baseline"))
        return [file for file in files if Path(file).is_file()]

    def trace_file(self, wildcards: Any) -> list[str]:
        """The input of a trace's analysis; without paths that Snakemake cannot handle, see `without_braces`."""
        return without_braces([self.plan.settings.traces[wildcards.trace]])

    @property
    def baseline_files(self) -> list[str]:
        """The baselines, without paths that Snakemake cannot handle, see `without_braces`."""
        return without_braces(self.baselines)

    def training(self, wildcards: Any) -> str:
        """Digest of everything that a run depends on: configuration, code, versions."""
        return self.plan.key("training", wildcards.study, wildcards.variant)

    def keys(self, what: str) -> Any:
        """A params function: the digest of everything that a check of a study's variants depends on."""
        return lambda wildcards: self.tasks[f"results/{wildcards.study}/{what}"].key

    def other_studies(self) -> list[str]:
        """Comparisons of studies that are not part of this call but have a page; they stay in the index.

        Files of another version of steptrace cannot be read and are left out until their study runs again.
        """
        files = sorted(RESULTS.glob("*/comparison.json"))
        unplanned = [file for file in files if file.parent.name not in self.plan.studies]
        with_page = [file for file in unplanned if Path("reports", f"{file.parent.name}.html").is_file()]
        if not with_page:
            return []
        from steptrace.documents.base import is_present  # imported here, since most calls do not need it
        from steptrace.documents.comparison import Comparison

        return [str(file) for file in with_page if is_present(file, Comparison)]

    # Resources.
    def lacks_gpu(self) -> bool:
        """Whether every variant trains on a GPU and this machine has none."""
        devices = {variant.config["device"] for variant in self.plan.variants.values()}
        return devices == {"cuda"} and not visible_gpus()

    def gpus(self, wildcards: Any) -> int:
        """GPUs of a training, one per rank; for a check without a variant, those of the study's baseline."""
        config = self._config(wildcards)
        return int(config["distributed"]["world_size"]) if config["device"] == "cuda" else 0

    def threads(self, wildcards: Any) -> int:
        """Threads of a training: all cores on a CPU, since it is timed; with GPUs, the share of the cores per GPU."""
        gpus = self.gpus(wildcards)
        return max(1, (os.cpu_count() or 1) // max(len(visible_gpus()), 1) * gpus) if gpus else ALL_CORES

    def takes(self, wildcards: Any) -> str:
        """The supervisor's options that name the devices."""
        gpus = self.gpus(wildcards)
        return f"--gpus {gpus}" if gpus else "--cpu"

    # Order: study by study; within a study the rounds, then the checks, then the analyses.
    def priority(self, study: str, stage: int) -> int:
        """The priority of a stage of a study."""
        names = list(self.plan.studies)
        return 100 * (len(names) - names.index(study)) - stage

    def _config(self, wildcards: Any) -> dict[str, Any]:
        variant = getattr(wildcards, "variant", None) or self.plan.studies[wildcards.study].baseline
        return self.plan.variants[wildcards.study, variant].config


def names(options: Iterable[object]) -> str:
    """A wildcard constraint that matches exactly these names."""
    return "|".join(re.escape(str(name)) for name in options) or "(?!)"


def without_braces(paths: Iterable[str]) -> list[str]:
    """The paths without braces. Snakemake takes braces for wildcards, even in the result of an input function.

    Changes of the other files are still noticed, since the record of a task marks all of its inputs.
    """
    return [path for path in paths if "{" not in path]


def stop(error: object) -> NoReturn:
    """End Snakemake with a message instead of a traceback, with exit code 2."""
    sys.stderr.write(printable(f"steptrace: error: {error}\n"))
    sys.stderr.flush()
    os._exit(2)


def _has_record(output: str) -> bool:
    """Whether Snakemake has a record of an output; without one it does not compare params.

    If Snakemake changes the format of its records, none is found. The output is then forced, with the same result.
    """
    name = urlsafe_b64encode(output.encode()).decode()
    longest = 255 - 1  # a longer name is split into folders
    parts = [name[start : start + longest] for start in range(0, len(name), longest)]
    return Path(".snakemake", "metadata", *(f"@{part}" for part in parts[:-1]), parts[-1]).exists()


def begin(config: Mapping[str, Any]) -> SnakemakePlan:
    """Plan what `--config` and the settings ask for. Writes and removes nothing in the working directory.

    An error ends Snakemake with its message.
    """
    try:
        plan = SnakemakePlan(make_plan(ROOT, Path.cwd(), config))
    except SteptraceError as error:
        stop(error)
    atexit.register(plan.plan.cache.save)  # without the cache a call with nothing to do takes twice as long
    return plan


def force_where_unrecorded(plan: SnakemakePlan, workflow: Any) -> None:
    """Make Snakemake redo outdated outputs that it has no record of.

    Without a record of an output Snakemake does not compare params. The files that the user forces by `--forcerun` are
    known once Snakemake has prepared its graph of jobs; the outdated outputs are added to them then.

    Args:
        plan: the plan.
        workflow: Snakemake's object of that name in the Snakefile.
    """
    prepare = workflow._prepare_dag

    def prepared(*arguments: Any, **options: Any) -> None:
        prepare(*arguments, **options)
        workflow.dag.forcefiles.update(plan.to_force())
        for line in plan.damage():
            sys.stderr.write(printable(f"steptrace: {line}\n"))

    workflow._prepare_dag = prepared


def correct_list_of_changes() -> None:
    """Make `--list-changes params` name the files whose params changed, as `--dry-run` does.

    Snakemake's `ParamsChange` (its pull request 3140) yields every file that was compared, changed or not.
    """
    with contextlib.suppress(ImportError):
        from snakemake.persistence import ParamsChange

        ParamsChange.__iter__ = lambda change: iter(change.files if change else ())


def before_the_first_job(plan: SnakemakePlan, *, gpus_here: bool) -> None:
    """Take the lock and write the files that the jobs read; end Snakemake if that fails. Not called by a dry run."""
    if gpus_here and plan.lacks_gpu():  # checked first, since failed runs would replace the results of earlier ones
        cluster = "on a cluster set how many GPUs to use: --resources gpu=N"
        stop(f"scale=gpu needs a GPU, and none was found\n  next: use scale=cpu, or scale=auto; {cluster}")
    try:
        LOCK.acquire(timeout=1)  # another call holds it for a moment while it plans
        plan.plan.write_snapshots()
        write_tasks(plan.tasks)
    except Timeout:
        stop(f"another snakemake is running in {Path.cwd()}\n  next: wait until it ends, or use --directory DIR")
    except OSError as error:
        place = Path(error.filename or ".").absolute()
        stop(f"{place}: {error.strerror}\n  expected: a folder that this user may write to")
