"""What the Snakefile's rules ask for: files, shares of the machine, order, and what makes a rule run again.

The plan is made while the Snakefile is read; before the first job the lock is taken. Methods of `Rules` that take
`wildcards` are input, params and resources functions. Paths are relative to the working directory, as Snakemake's are.
"""

import atexit
import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from filelock import FileLock, Timeout

from steptrace.config.plan import RESULTS, Plan, make_plan
from steptrace.errors import SteptraceError
from steptrace.format import printable
from steptrace.machine import visible_gpus
from steptrace.record import STATUS_FILE, read_status, would_end_alike
from steptrace.root import ROOT

#: Held as long as this process lives, so that there is nothing to unlock after a crash.
LOCK: Final = FileLock(RESULTS / ".cache" / "running.lock")
#: Snakemake gives a job no more than there is; a cluster's profile says what that is (`max-threads`).
ALL_CORES: Final = 1024
#: Priority of what ends a study: before anything else that is ready.
ENDING: Final = 1_000_000
#: Of what no study waits for.
CHECKS: Final = 50
#: A loss from here is made of the extension's operators.
_OPERATORS: Final = "steptrace.workloads.giou_kernels."
#: Between a key and the failure of an earlier try.
_AFTER: Final = " after "
#: What a check of a variant leaves, from its folder.
_RESULTS_OF: Final = {"equivalence": "equivalence.json", "prediction": "../prediction.json"}


@dataclass(frozen=True)
class Rules:
    """The plan, as the rules see it."""

    plan: Plan

    def runs(self, name: str, study: str | None = None) -> list[str]:
        """A file of every run of every variant, of all studies or of one."""
        repeats = range(self.plan.repeats)
        pairs = [pair for pair in self.plan.pairs if study in (None, pair[0])]
        return [f"results/{s}/{v}/run{repeat}/{name}" for s, v in pairs for repeat in repeats]

    def runs_of_variant(self, name: str) -> list[str]:
        """A file of every repeat, for a rule about one variant."""
        return [f"results/{{study}}/{{variant}}/run{repeat}/{name}" for repeat in range(self.plan.repeats)]

    def extension(self, wildcards: Any = None) -> list[str]:
        """The compiled operators, if the variant's loss calls them; without one any of the study's, or any."""
        study, variant = (getattr(wildcards, name, "") for name in ("study", "variant"))
        pairs = [(s, v) for s, v in self.plan.pairs if study in ("", s) and variant in ("", v)]
        return ["results/extension/status.json"] if any(self._calls_operators(*pair) for pair in pairs) else []

    def _calls_operators(self, study: str, variant: str) -> bool:
        loss = self.plan.variant(study, variant).config.get("loss", {})  # a study of commands has none
        return str(loss.get("_target_", "")).startswith(_OPERATORS)

    # What makes a rule run again besides its input. What is supervised writes its key into its status.
    def study(self, wildcards: Any) -> str:
        """Digest of what a comparison reads of the plan."""
        return hashlib.sha256(self.plan.studies[wildcards.study].files()["study.json"].encode()).hexdigest()[:16]

    @property
    def estimate_gpus(self) -> str:
        """The argument that names the GPUs to estimate for; empty without any."""
        return shlex.join(["--gpu", *self.plan.settings.estimate_gpus]) if self.plan.settings.estimate_gpus else ""

    def gates(self, wildcards: Any) -> str:
        """The gates of one study, in the form of `gates:`, as JSON."""
        gates = self.plan.settings.gates
        return json.dumps({wildcards.study: gates[wildcards.study]} if wildcards.study in gates else {})

    def training(self, wildcards: Any) -> str:
        """What a run depends on: configuration, code, versions."""
        run = RESULTS / wildcards.study / wildcards.variant / f"run{wildcards.repeat}"
        return key_of_try(run, self.plan.key("training", wildcards.study, wildcards.variant), "run.json")

    def keys(self, what: str) -> Any:
        """Of a check: what each variant's depends on, as `VARIANT=KEY`."""

        def key(study: str, variant: str) -> str:
            folder = RESULTS / study
            return key_of_try(
                folder / variant / what, self.plan.key(what, study, variant), _RESULTS_OF[what], folder / f"{what}.json"
            )

        return lambda wildcards: [f"{v}={key(s, v)}" for s, v in self.plan.pairs if s == wildcards.study]

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
        devices = {self.plan.variant(*pair).config["device"] for pair in self.plan.pairs}
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
        return self.plan.variant(wildcards.study, variant).config


def key_of_try(folder: Path, key: str, result: str = STATUS_FILE, of_all: Path | None = None) -> str:
    """`key`, with the last try in `folder` if that failed or its result is gone, so that the next call tries it again.

    A try that ended well keeps the key that it was made under, and is not made again.

    Args:
        folder: of the try, with its status.
        key: what it depends on.
        result: path from there of what it leaves besides.
        of_all: what Snakemake knows of, if not the status: there after the tries of all variants.
    """
    if not (folder / STATUS_FILE).exists():
        return key if of_all is None or not of_all.exists() else f"{key}{_AFTER}no try"
    try:
        status = read_status(folder)
    except SteptraceError:  # of another version, or damaged
        return f"{key}{_AFTER}an unreadable status"
    if status.key.partition(_AFTER)[0] != key:
        return key
    is_there = status.status != "ok" or (folder / result).exists()
    return status.key if would_end_alike(folder, status) and is_there else f"{key}{_AFTER}{status.started_at}"


def launcher(world_size: int) -> str:
    """What stands between `python` and `-m module` to start that many ranks on this machine; empty for one.

    No address but the loopback's is used, so a machine without a network will do.
    """
    ranks = f"-m torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node {world_size}"
    return ranks if world_size > 1 else ""


def names(options: Iterable[object]) -> str:
    """A wildcard constraint that matches these names and no other."""
    return "|".join(re.escape(str(name)) for name in options) or "(?!)"


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
