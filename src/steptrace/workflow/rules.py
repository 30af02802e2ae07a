"""What the Snakefile's rules ask for: which files, how much of the machine, and what makes a rule run again.

`Rules` holds one workflow's plan and the machine it is to run on; its methods that take `wildcards` are the rules'
input, params and resources functions. Paths are relative to the working directory, as Snakemake's are.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

from steptrace.compare.verdict import ending
from steptrace.config.plan import Plan, key_of_run
from steptrace.documents.base import read
from steptrace.documents.verdict import Verdict
from steptrace.errors import RecordError, TraceError
from steptrace.standing import comparisons_with_pages
from steptrace.trace.find import find_traces
from steptrace.train.torchrun import launcher

RESULTS: Final = Path("results")
PAGES: Final = Path("reports")
#: Held by a workflow that is at work.
LOCK: Final = RESULTS / ".cache" / "running.lock"
VERDICT: Final = RESULTS / "verdict.json"
INDEX: Final = PAGES / "index.html"
#: A loss from here is made of the extension's operators.
OPERATORS: Final = "steptrace.workloads.giou_kernels."
#: The stages of a study: the first round's trainings are 0, the rounds after it follow its checks.
CHECKS: Final = 1
#: Priority of what ends a study: it goes before anything else that is ready.
ENDING: Final = 1_000_000


class Wildcards(Protocol):
    """What Snakemake matched: a study's variant, and the repeat where a rule is about a run; or an imported trace."""

    study: str
    variant: str
    repeat: str
    trace: str


@dataclass(frozen=True)
class Machine:
    """What the jobs may use. `local` is False where they are sent to a cluster, and then nothing is known of it."""

    local: bool
    cores: int
    gpus: int

    @property
    def quiet(self) -> int:
        """How much of the resource `quiet` there is: a training takes one where several run, the rest all."""
        return self.gpus if self.local and self.gpus > 1 else 0


@dataclass(frozen=True)
class Rules:
    """The plan and the machine, as the rules see them."""

    plan: Plan
    machine: Machine

    # Files.
    def run_files(self, name: str) -> list[str]:
        """A file of every repeat of every variant."""
        return [f"results/{s}/{v}/run{k}/{name}" for s, v in self.plan.pairs for k in range(self.plan.repeats)]

    def runs_of_variant(self, name: str) -> list[str]:
        """A file of every repeat, for a rule about one variant."""
        return [f"results/{{study}}/{{variant}}/run{k}/{name}" for k in range(self.plan.repeats)]

    def variant_files(self, name: str) -> list[str]:
        """A file of every variant."""
        return [f"results/{study}/{variant}/{name}" for study, variant in self.plan.pairs]

    def ranks_of_variant(self, wildcards: Wildcards) -> list[str]:
        """The folders of all ranks of a variant's runs: on a cluster each rank is analysed by a job of its own."""
        ranks = self.ranks(wildcards)
        runs = 0 if self.machine.local or ranks == 1 else self.plan.repeats
        folder = f"results/{wildcards.study}/{wildcards.variant}"
        return [f"{folder}/run{repeat}/ranks/{rank}" for repeat in range(runs) for rank in range(ranks)]

    def recorded(self, wildcards: Wildcards) -> list[Path]:
        """The trace files behind an imported trace; none if there is something wrong, which its analysis will tell."""
        found = self._recorded
        if wildcards.trace not in found:
            try:
                found[wildcards.trace] = find_traces([self.plan.settings.traces[wildcards.trace]])
            except TraceError:
                found[wildcards.trace] = []
        return found[wildcards.trace]

    @cached_property
    def _recorded(self) -> dict[str, list[Path]]:
        """By trace, once looked for: each of its ranks' jobs asks, and looking opens every file."""
        return {}

    def ranks_of_trace(self, wildcards: Wildcards) -> list[str]:
        """The folders of an imported trace's ranks, each analysed by a job of its own; none if it is a single file."""
        files = len(self.recorded(wildcards))
        return [f"results/traces/{wildcards.trace}/ranks/{rank}" for rank in range(files)] if files > 1 else []

    @cached_property
    def status_files(self) -> list[str]:
        """The status of everything that is run under a supervisor."""
        of_variants = (*self.variant_files("equivalence/status.json"), *self.variant_files("prediction/status.json"))
        return [*self.run_files("status.json"), *of_variants]

    def standing(self) -> list[str]:
        """Comparisons of studies that do not run now but whose pages are there: they stay in the index."""
        found = comparisons_with_pages(RESULTS, PAGES)
        return [str(path) for path in found if path.parent.name not in self.plan.studies]

    def reference(self, wildcards: Wildcards) -> str:
        """The configuration of the float64 reference that a variant is held against."""
        return f"results/{wildcards.study}/{self.plan.variant(wildcards.study, wildcards.variant).reference}"

    def extension(self, wildcards: Wildcards) -> str | list[str]:
        """What a variant has to wait for: the extension's status if its loss comes from there, whatever it is."""
        return "results/extension/status.json" if self._needs_extension(wildcards.study, wildcards.variant) else []

    def _needs_extension(self, study: str, variant: str) -> bool:
        loss = self.plan.variant(study, variant).config.get("loss", {})  # a study of commands has none
        return str(loss.get("_target_", "")).startswith(OPERATORS)

    # What makes a rule run again besides its input.
    @property
    def estimate_gpus(self) -> str:
        """The argument that names the GPUs to estimate for; empty without any."""
        return shlex.join(["--gpu", *self.plan.settings.estimate_gpus]) if self.plan.settings.estimate_gpus else ""

    def gates(self, wildcards: Wildcards) -> str:
        """The gates of one study, in the form of `gates:`, as JSON."""
        gates = self.plan.settings.gates
        return json.dumps({wildcards.study: gates[wildcards.study]} if wildcards.study in gates else {})

    def training(self, wildcards: Wildcards) -> str:
        """What a run's supervisor is told of it: which attempt it is, on what it runs, its configuration and code."""
        digests = self.plan.train_digests(wildcards.study, wildcards.variant)
        attempt = self.plan.attempt(wildcards.study, wildcards.variant, f"run{wildcards.repeat}", digests)
        on = f"--device {self.device(wildcards)} --devices {self.ranks(wildcards)}"
        return f"--attempt {attempt} {on} --key {key_of_run(digests)}"

    def equivalence(self, wildcards: Wildcards) -> str:
        """The same of a check of the answer."""
        digests = self.plan.equivalence_digests(wildcards.study, wildcards.variant)
        attempt = self.plan.attempt(wildcards.study, wildcards.variant, "equivalence", digests)
        return f"--attempt {attempt} --key {key_of_run(digests)}"

    # What Python runs: something of ours, or a part of a study of commands.
    def trains(self, wildcards: Wildcards) -> str:
        """A training, under torchrun where it has several ranks; or the measurement of a program."""
        ours = f"{launcher(self.ranks(wildcards))} -m steptrace.train.main".lstrip()
        return self._either(wildcards, ours, "measure")

    def compares(self, wildcards: Wildcards) -> str:
        """The check of a variant's answer."""
        return self._either(wildcards, "-m steptrace.train.equivalence", "answer")

    def predicts(self, wildcards: Wildcards) -> str:
        """The prediction of a variant's syncs."""
        return self._either(wildcards, "-m steptrace.predict.main", "predict")

    def _either(self, wildcards: Wildcards, ours: str, of_program: str) -> str:
        return f"-m steptrace.launch.main {of_program}" if "program" in self._config(wildcards) else ours

    # In which order.
    def stage_of_round(self, round_: int) -> int:
        """Of the trainings of a round."""
        return round_ if round_ == 0 else CHECKS + round_

    @property
    def stage_of_analyses(self) -> int:
        """After the last training."""
        return self.stage_of_round(self.plan.repeats)

    def priority(self, study: str, stage: int) -> int:
        """Of a stage of a study: all of one study come before the first of the next."""
        place = list(self.plan.studies).index(study)
        return (len(self.plan.studies) - place) * (self.stage_of_analyses + 2) - stage

    @property
    def priority_of_extension(self) -> int:
        """Before the first study that needs it, and after the one before that."""
        needed = [study for study, variant in self.plan.pairs if self._needs_extension(study, variant)]
        return self.priority(needed[0], -1) if needed else 0

    # How much of the machine.
    def device(self, wildcards: Wildcards) -> str:
        """`cpu` or `cuda`."""
        return str(self._config(wildcards)["device"])

    def ranks(self, wildcards: Wildcards) -> int:
        """The processes that a training consists of."""
        return int(self._config(wildcards)["distributed"]["world_size"])

    def gpus_of_training(self, wildcards: Wildcards) -> int:
        """One for each rank. With fewer here it is started all the same: it fails, saying so, and the others go on."""
        if self.device(wildcards) != "cuda":
            return 0
        ranks = self.ranks(wildcards)
        return min(ranks, max(self.machine.gpus, 1)) if self.machine.local else ranks

    def gpus_of_equivalence(self, wildcards: Wildcards) -> int:
        """On a cluster one where the variant trains on one.

        On this machine the check takes the GPU itself, for as long as the variant computes on it: the float64 reference
        is the longer part, and runs on the CPU.
        """
        return 1 if self.device(wildcards) == "cuda" and not self.machine.local else 0

    def threads_of_training(self, wildcards: Wildcards) -> int:
        """All cores for a training on a CPU, its share for one on a GPU; on a cluster what it is asked for."""
        if not self.machine.local:
            # Per rank: the loader's workers, the training and the autograd thread.
            workers = self._config(wildcards).get("data", {}).get("num_workers", 0)
            return self.ranks(wildcards) * (int(workers) + 2)
        if self.device(wildcards) != "cuda":
            return self.machine.cores
        return max(1, self.machine.cores // max(self.machine.gpus, 1) * self.gpus_of_training(wildcards))

    def threads_of_check(self, wildcards: Wildcards) -> int:
        """Of a check of the answer or a prediction: its share of the cores here, where a study's start together."""
        variants = len(self.plan.studies[wildcards.study].variants)
        return max(1, self.machine.cores // variants) if self.machine.local else 1

    def quiet_of_training(self, wildcards: Wildcards) -> int:
        """All of it for a training on the CPU, else one for each GPU."""
        if self.device(wildcards) != "cuda":
            return self.machine.quiet
        return min(self.machine.quiet, self.gpus_of_training(wildcards))

    def mb_of_analysis(self, wildcards: Wildcards, input: Sequence[str]) -> int:  # noqa: ARG002 - Snakemake's
        """Megabytes of memory for the analysis of the trace that is a rule's input."""
        from steptrace.trace.parallel import memory_of  # costs every call of the workflow what few need

        return memory_of(Path(input[0])) >> 20

    def no_gpu_for_any(self) -> bool:
        """Whether every variant trains on a GPU and there is none."""
        devices = {self.plan.variant(*pair).config["device"] for pair in self.plan.pairs}
        return self.machine.local and not self.machine.gpus and devices == {"cuda"}

    def closing_lines(self, started: float) -> list[str]:
        """What a run that failed says at its very end.

        Args:
            started: when it began, in seconds of `time.time`.
        """
        missing = [file for file in self.status_files if not Path(file).exists()]
        words = [f"{len(missing)} runs were not finished, among them {Path(missing[0]).parent}"] if missing else []
        if gates := broken_gates(started):
            return [*words, gates]  # it names the page, and the same command again would break them again
        words += [f"report: {INDEX.resolve()}"] if INDEX.exists() else []
        return [*words, "the same command again runs only what failed or is missing"]

    def _config(self, wildcards: Wildcards) -> dict[str, Any]:
        return self.plan.variant(wildcards.study, wildcards.variant).config


def of_study(files: Iterable[str]) -> Callable[[Wildcards], list[str]]:
    """An input function: those of `files` that belong to the study."""
    return lambda wildcards: [file for file in files if file.startswith(f"results/{wildcards.study}/")]


def of_variant(look_up: Callable[[str, str], dict[str, str]], *kinds: str) -> Callable[[Wildcards], str]:
    """A params function: some of a variant's digests, such as `of_variant(plan.train_digests, "config")`.

    Few functions with long answers: Snakemake takes longer to call one than it takes to answer.
    """

    def digests(wildcards: Wildcards) -> str:
        found = look_up(wildcards.study, wildcards.variant)
        return " ".join(found[kind] for kind in kinds)

    return digests


def names(known: Iterable[object]) -> str:
    """A wildcard constraint that matches these names and no other."""
    return "|".join(re.escape(str(name)) for name in known) or "(?!)"


def broken_gates(started: float) -> str | None:
    """What to say where all went well but for gates; None if this run has not come to judge them, or more is wrong."""
    try:
        if (RESULTS / "enforce.log").stat().st_mtime < started:
            return None
        return ending(read(VERDICT, Verdict), Path.cwd())
    except (OSError, RecordError):
        return None
