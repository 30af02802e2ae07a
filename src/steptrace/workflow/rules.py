"""What the Snakefile's rules ask for: files, shares of the machine, order, and what makes a rule run again.

While the Snakefile is read the plan is made, and the statuses of what failed are removed; before the first job the lock
is taken. Methods of `Rules` that take `wildcards` are input, params and resources functions. Paths are relative to the
working directory, as Snakemake's are.
"""

import atexit
import contextlib
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
from steptrace.record import STATUS_FILE, finished
from steptrace.root import ROOT

#: Held as long as this process lives, so that there is nothing to unlock after a crash.
LOCK: Final = FileLock(RESULTS / ".cache" / "running.lock")
#: Snakemake gives a job no more than there is; a cluster's profile says what that is (`max-threads`).
ALL_CORES: Final = 1024
#: Priority of what ends a study: before anything else that is ready.
ENDING: Final = 1_000_000
#: Of what no study waits for.
CHECKS: Final = 50
#: The folder of the compiled operators.
EXTENSION: Final = RESULTS / "extension"
#: What is checked of every variant of a study, in one job.
VARIANT_CHECKS: Final = ("equivalence", "prediction")
#: A loss from here is made of the extension's operators.
_OPERATORS: Final = "steptrace.workloads.giou_kernels."


@dataclass(frozen=True)
class Rules:
    """The plan, as the rules see it."""

    plan: Plan

    def runs(self, name: str, study: str | None = None) -> list[str]:
        """A file of every run of every variant, of all studies or of one."""
        repeats = range(self.plan.settings.repeats)
        pairs = [pair for pair in self.plan.variants if study in (None, pair[0])]
        return [f"results/{s}/{v}/run{repeat}/{name}" for s, v in pairs for repeat in repeats]

    def runs_of_variant(self, name: str) -> list[str]:
        """A file of every repeat, for a rule about one variant."""
        return [f"results/{{study}}/{{variant}}/run{repeat}/{name}" for repeat in range(self.plan.settings.repeats)]

    def extension(self, wildcards: Any = None) -> list[str]:
        """The compiled operators, if the variant's loss calls them; without one any of the study's, or any."""
        study, variant = (getattr(wildcards, name, "") for name in ("study", "variant"))
        losses = [
            str(chosen.config.get("loss", {}).get("_target_", ""))  # a study of commands has none
            for (s, v), chosen in self.plan.variants.items()
            if study in ("", s) and variant in ("", v)
        ]
        return [str(EXTENSION / STATUS_FILE)] if any(loss.startswith(_OPERATORS) for loss in losses) else []

    # What makes a rule run again besides its input.
    def remove_failed(self) -> None:
        """Remove the status of what failed, or has lost its result, so that this call tries it again.

        Nothing is removed beside a running call, which holds the lock: its jobs on a cluster read the Snakefile, too.
        """
        results = {folder: folder / STATUS_FILE for folder in map(Path, self.runs(""))}
        results[EXTENSION] = EXTENSION / STATUS_FILE
        for check in VARIANT_CHECKS:
            results |= {RESULTS / s / v / check: RESULTS / s / f"{check}.json" for s, v in self.plan.variants}
        with contextlib.suppress(Timeout, OSError), LOCK.acquire(blocking=False):
            for folder, result in results.items():
                if result.exists() and finished(folder) is None:
                    (folder / STATUS_FILE).unlink(missing_ok=True)
                    result.unlink(missing_ok=True)

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
        """Of a check: what each variant's depends on, as `VARIANT=KEY`."""
        key = self.plan.key
        return lambda wildcards: [f"{v}={key(what, s, v)}" for s, v in self.plan.variants if s == wildcards.study]

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


def begin(config: Mapping[str, Any]) -> Rules:
    """Plan what `--config` and the files ask for, in a dry run, too: see `Rules.remove_failed` for what that removes.

    Nothing is written but what later calls remember.
    """
    try:
        rules = Rules(make_plan(ROOT, Path.cwd(), config))
    except SteptraceError as error:
        stop(error)
    atexit.register(rules.plan.cache.save)  # half of the time of a call with nothing to do
    if RESULTS.is_dir():
        rules.remove_failed()
    return rules


def before_the_first_job(rules: Rules, *, gpus_here: bool) -> None:
    """Take the lock, or refuse to start, and write what the jobs read. A dry run does not come here."""
    if gpus_here and rules.lacks_gpu():  # before anything is touched: failures would replace an earlier run's results
        cluster = "on a cluster set how many GPUs to use: --resources gpu=N"
        stop(f"scale=gpu needs a GPU, and none was found\n  next: use scale=cpu, or scale=auto; {cluster}")
    try:
        LOCK.acquire(timeout=1)  # a call that is being planned has it for a moment
        rules.plan.write_snapshots()
    except Timeout:
        stop(f"another snakemake is running in {Path.cwd()}\n  next: wait until it ends, or use --directory DIR")
    except OSError as error:
        place = Path(error.filename or ".").absolute()
        stop(f"{place}: {error.strerror}\n  expected: a folder that this user may write to")
