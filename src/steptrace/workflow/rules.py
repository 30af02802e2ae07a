"""What the Snakefile's rules ask for: files, shares of the machine, order, and what makes a rule run again.

While the Snakefile is read the plan is made, and nothing in the working directory is written or removed. Before the
first job the lock is taken and what the jobs read is written. Methods of `Rules` that take `wildcards` are input,
params and resources functions. Paths are relative to the working directory, as Snakemake's are.
"""

import atexit
import contextlib
import hashlib
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
from typing import Any, Final, NoReturn

import msgspec
from filelock import FileLock, Timeout

from steptrace.config.plan import RESULTS, Plan, make_plan
from steptrace.config.study import GPU_CONFIG
from steptrace.errors import SteptraceError
from steptrace.format import printable
from steptrace.machine import visible_gpus
from steptrace.record import STATUS_FILE
from steptrace.root import ROOT
from steptrace.tasks import Task, write_tasks
from steptrace.workflow.made import State, key_of, state_of

#: Held as long as this process lives, so that there is nothing to unlock after a crash.
LOCK: Final = FileLock(RESULTS / ".cache" / "running.lock")
#: Snakemake gives a job no more than there is; a cluster's profile says what that is (`max-threads`).
ALL_CORES: Final = 1024
#: Priority of what ends a study: before anything else that is ready.
ENDING: Final = 1_000_000
#: Of what no study waits for.
CHECKS: Final = 50
#: What is checked of every variant of a study, in one job.
VARIANT_CHECKS: Final = ("equivalence", "prediction")
#: Damaged results that are named.
_MOST_LINES: Final = 5


@dataclass(frozen=True)
class Rules:
    """The plan, as the rules see it."""

    plan: Plan
    _states: dict[str, State] = field(default_factory=dict, repr=False)

    def runs(self, name: str, study: str | None = None) -> list[str]:
        """A file of every run of every variant, of all studies or of one."""
        repeats = range(self.plan.settings.repeats)
        pairs = [pair for pair in self.plan.variants if study in (None, pair[0])]
        return [f"results/{s}/{v}/run{repeat}/{name}" for s, v in pairs for repeat in repeats]

    def runs_of_variant(self, name: str) -> list[str]:
        """A file of every repeat, for a rule about one variant."""
        return [f"results/{{study}}/{{variant}}/run{repeat}/{name}" for repeat in range(self.plan.settings.repeats)]

    def prepared(self, wildcards: Any = None) -> list[str]:
        """What has to be prepared for a variant; without one for any of the study's, or for any."""
        study, variant = (getattr(wildcards, name, "") for name in ("study", "variant"))
        needs = [
            need
            for (s, v), chosen in self.plan.variants.items()
            if study in ("", s) and variant in ("", v)
            for need in chosen.needs
        ]
        return [f"{self.plan.preparations[need].folder}/{STATUS_FILE}" for need in dict.fromkeys(needs)]

    def prepares(self, wildcards: Any) -> str:
        """The command of a preparation, for a shell."""
        chosen = self.plan.preparations[wildcards.preparation]
        variables = [f"{name}={value}" for name, value in chosen.env.items()]
        return shlex.join([*(["env", *variables] if variables else []), *chosen.command])

    def variables(self) -> dict[str, str]:
        """The environment variables that preparations give; a value that the user has set goes first."""
        given = [each.gives for each in self.plan.preparations.values()]
        return {name: os.environ.get(name) or value for gives in given for name, value in gives.items()}

    # What makes a rule run again besides its input.
    @cached_property
    def tasks(self) -> dict[str, Task]:
        """Every task of the plan by its name, with the number of its next attempt."""
        tasks = {task.name: task for task in self._tasks()}
        return {name: msgspec.structs.replace(task, attempt=self.state(task).attempt) for name, task in tasks.items()}

    def state(self, task: Task) -> State:
        """Whether a task has to run again; looked up once, so that one call of Snakemake is of one mind."""
        if task.name not in self._states:
            self._states[task.name] = state_of(task)
        return self._states[task.name]

    def attempt(self, name: str) -> Any:
        """A param that changes whenever a task has to run again; `name` may have wildcards."""
        return lambda wildcards: f"attempt {self.tasks[name.format(**wildcards)].attempt}"

    def to_force(self) -> list[str]:
        """Outputs that Snakemake has to be told to make again, since it has no record of how they were made."""
        again = [task for task in self.tasks.values() if self.state(task).reason]
        return [file for task in again if not all(map(_has_record, task.outputs)) for file in task.outputs]

    def damage(self) -> list[str]:
        """A line for each result that is damaged."""
        states = [(task, self.state(task)) for task in self.tasks.values()]
        damaged = [(task.name, state.file) for task, state in states if state.reason == "damaged"]
        lines = [f"{name} is made again: {file} is missing or damaged" for name, file in damaged[:_MOST_LINES]]
        more = len(damaged) - _MOST_LINES
        return [*lines, f"... and {more} more"] if more > 0 else lines

    def _tasks(self) -> Iterator[Task]:
        for each in self.plan.preparations.values():
            status = f"{each.folder}/{STATUS_FILE}"
            yield Task(name=each.folder, key=each.key, outputs=(status,), supervised=True, result=each.result)
        for (study, variant), chosen in self.plan.variants.items():
            needs = tuple(self.plan.preparations[need].folder for need in chosen.needs)
            key, runs = self.plan.key("training", study, variant), range(self.plan.settings.repeats)
            folders = [f"results/{study}/{variant}/run{repeat}" for repeat in runs]
            for folder in folders:
                status = f"{folder}/{STATUS_FILE}"
                yield Task(name=folder, key=key, outputs=(status,), supervised=True, needs=needs)
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
            yield Task(name=folder, key=self.trace_code, inputs=(path,), outputs=outputs)
        comparisons = [f"results/{study}/comparison.json" for study in self.plan.studies]
        summaries = [f"results/traces/{trace}/summary.json" for trace in self.plan.settings.traces]
        others = self.other_studies()
        yield Task(
            name="reports/index",
            key=key_of([self.report_code]),
            inputs=(*comparisons, *others, *summaries),
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
        """What `Plan.write_snapshots` writes of a study. A damaged one is written anew only when some job starts."""
        planned = self.plan.studies[study]
        names = [f"{variant.name}/{file}" for variant in planned.variants for file in ("config.yaml", GPU_CONFIG)]
        return [f"results/{study}/{name}" for name in ("study.json", *names, *planned.references)]

    @cached_property
    def report_code(self) -> str:
        """Digest of what makes pages. The sections of a page are named in one tuple, so the whole package counts."""
        return self.plan.code("steptrace.report.*", script="report")

    @cached_property
    def trace_code(self) -> str:
        """Digest of what analyses a trace."""
        return self.plan.code("steptrace.cli", "steptrace.commands.analyze")

    @cached_property
    def own_gpus(self) -> list[str]:
        """The text of the project's own gpus.toml."""
        return [Path("gpus.toml").read_text(encoding="utf-8") if Path("gpus.toml").is_file() else ""]

    def study(self, wildcards: Any) -> str:
        """Digest of what a comparison reads of the plan."""
        return hashlib.sha256(self.plan.studies[wildcards.study].document().encode()).hexdigest()[:16]

    @property
    def estimate_gpus(self) -> str:
        """The argument that names the GPUs to estimate for; empty without any."""
        return shlex.join(["--gpu", *self.plan.settings.estimate_gpus]) if self.plan.settings.estimate_gpus else ""

    def gates(self, wildcards: Any) -> str:
        """The gates of one study, in the form of `gates:`, as JSON."""
        gates = self.plan.settings.gates
        return json.dumps({wildcards.study: gates[wildcards.study]} if wildcards.study in gates else {})

    @property
    def baselines(self) -> list[str]:
        """The comparison.json files that gates name, if they are there: one that is not breaks its gate and no more."""
        gates = self.plan.settings.gates
        limits = [limits for variants in gates.values() for keys in variants.values() for limits in keys.values()]
        files = dict.fromkeys(str(limit["baseline"]) for limit in limits if limit.get("baseline"))
        return [file for file in files if Path(file).is_file()]

    def training(self, wildcards: Any) -> str:
        """What a run depends on: configuration, code, versions."""
        return self.plan.key("training", wildcards.study, wildcards.variant)

    def keys(self, what: str) -> Any:
        """A digest of what the checks of a study's variants depend on."""
        return lambda wildcards: self.tasks[f"results/{wildcards.study}/{what}"].key

    def other_studies(self) -> list[str]:
        """Comparisons of studies that are not part of this call but have a page: they stay in the index.

        Those of another version of steptrace cannot be read, and come back with the study's next run.
        """
        files = sorted(RESULTS.glob("*/comparison.json"))
        others = [file for file in files if file.parent.name not in self.plan.studies]
        with_page = [file for file in others if Path("reports", f"{file.parent.name}.html").is_file()]
        if not with_page:
            return []
        from steptrace.documents.base import is_present  # most calls can do without these
        from steptrace.documents.comparison import Comparison

        return [str(file) for file in with_page if is_present(file, Comparison)]

    # How much of the machine.
    def lacks_gpu(self) -> bool:
        """Whether every variant trains on a GPU, and there is none here."""
        devices = {variant.config["device"] for variant in self.plan.variants.values()}
        return devices == {"cuda"} and not visible_gpus()

    def gpus(self, wildcards: Any) -> int:
        """GPUs of a training, one a rank; of a check of the answer as many as the study's baseline trains on."""
        config = self._config(wildcards)
        return int(config["distributed"]["world_size"]) if config["device"] == "cuda" else 0

    def threads(self, wildcards: Any) -> int:
        """All cores for a timed training on a CPU, a share for each GPU."""
        gpus = self.gpus(wildcards)
        return max(1, (os.cpu_count() or 1) // max(len(visible_gpus()), 1) * gpus) if gpus else ALL_CORES

    def takes(self, wildcards: Any) -> str:
        """The supervisor's arguments that name the devices."""
        gpus = self.gpus(wildcards)
        return f"--gpus {gpus}" if gpus else "--cpu"

    def trains(self, wildcards: Any) -> str:
        """What Python runs; the config's path follows."""
        config = self._config(wildcards)
        if "program" in config:
            return "-m steptrace.launch.main measure --config"
        return f"{launcher(int(config['distributed']['world_size']))} -m steptrace.train".lstrip()

    # In which order: study by study; of a study the rounds, then the checks, then the analyses.
    def priority(self, study: str, stage: int) -> int:
        """Of a stage of a study."""
        names = list(self.plan.studies)
        return 100 * (len(names) - names.index(study)) - stage

    def _config(self, wildcards: Any) -> dict[str, Any]:
        variant = getattr(wildcards, "variant", None) or self.plan.studies[wildcards.study].baseline
        return self.plan.variants[wildcards.study, variant].config


def launcher(world_size: int) -> str:
    """What stands between `python` and `-m module` to start that many ranks on this machine; empty for one.

    No address but the loopback's is used, so a machine without a network will do.
    """
    ranks = f"-m steptrace.train.torchrun --standalone --local-addr 127.0.0.1 --nproc-per-node {world_size}"
    return ranks if world_size > 1 else ""


def names(options: Iterable[object]) -> str:
    """A wildcard constraint that matches these names and no other."""
    return "|".join(re.escape(str(name)) for name in options) or "(?!)"


def stop(error: object) -> NoReturn:
    """End Snakemake with one message instead of a traceback."""
    sys.stderr.write(printable(f"steptrace: error: {error}\n"))
    sys.stderr.flush()
    os._exit(2)


def _has_record(output: str) -> bool:
    """Whether Snakemake has a record of an output: without one it does not look at params.

    Where its format changes there seems to be none, and it is told what it would have found out.
    """
    name = urlsafe_b64encode(output.encode()).decode()
    longest = 255 - 1  # a longer name is split into folders
    parts = [name[start : start + longest] for start in range(0, len(name), longest)]
    return Path(".snakemake", "metadata", *(f"@{part}" for part in parts[:-1]), parts[-1]).exists()


def begin(config: Mapping[str, Any]) -> Rules:
    """Plan what `--config` and the files ask for. Nothing in the working directory is written or removed."""
    try:
        rules = Rules(make_plan(ROOT, Path.cwd(), config))
    except SteptraceError as error:
        stop(error)
    atexit.register(rules.plan.cache.save)  # half of the time of a call with nothing to do
    return rules


def force_where_unrecorded(rules: Rules, workflow: Any) -> None:
    """Have Snakemake make again what no longer stands, also where it has no record of its own.

    Without a record of an output Snakemake does not compare params. Files that a person forces by `--forcerun` are
    known once the graph of jobs is prepared; these are added to them.

    Args:
        rules: the plan.
        workflow: Snakemake's object of that name in the Snakefile.
    """
    prepare = workflow._prepare_dag

    def prepared(*arguments: Any, **options: Any) -> None:
        prepare(*arguments, **options)
        workflow.dag.forcefiles.update(rules.to_force())
        for line in rules.damage():
            sys.stderr.write(printable(f"steptrace: {line}\n"))

    workflow._prepare_dag = prepared


def correct_list_of_changes() -> None:
    """Have `--list-changes params` name the files whose params changed, as `--dry-run` does.

    Snakemake's `ParamsChange` (its pull request 3140) yields every file that was compared, changed or not.
    """
    with contextlib.suppress(ImportError):
        from snakemake.persistence import ParamsChange

        ParamsChange.__iter__ = lambda change: iter(change.files if change else ())


def before_the_first_job(rules: Rules, *, gpus_here: bool) -> None:
    """Take the lock, or refuse to start, and write what the jobs read. A dry run does not come here."""
    if gpus_here and rules.lacks_gpu():  # before anything is touched: failures would replace an earlier run's results
        cluster = "on a cluster set how many GPUs to use: --resources gpu=N"
        stop(f"scale=gpu needs a GPU, and none was found\n  next: use scale=cpu, or scale=auto; {cluster}")
    try:
        LOCK.acquire(timeout=1)  # a call that is being planned has it for a moment
        rules.plan.write_snapshots()
        write_tasks(rules.tasks)
    except Timeout:
        stop(f"another snakemake is running in {Path.cwd()}\n  next: wait until it ends, or use --directory DIR")
    except OSError as error:
        place = Path(error.filename or ".").absolute()
        stop(f"{place}: {error.strerror}\n  expected: a folder that this user may write to")
