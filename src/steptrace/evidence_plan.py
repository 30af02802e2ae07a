"""Which studies a machine can run when everything is to be measured on it, and in which order."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from steptrace.config.gpus import count_gpus
from steptrace.config.names import near
from steptrace.config.plan import make_plan
from steptrace.config.schema import lookup
from steptrace.config.settings import Project
from steptrace.errors import ConfigError

#: The studies that the others refer to: first, so that a limit of time costs the others.
FIRST: Final = ("masked_loss", "giou")
_ENTRY: Final = re.compile(r"(?P<studies>[^:,]+(,[^:,]+)*)(?P<repeats>:[1-9][0-9]*)?")


def runnable(root: Path, workdir: Path, scale: str, wanted: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Sort out the studies that need more GPUs than there are.

    Args:
        root: the folder that holds the Snakefile.
        workdir: the folder that receives results/.
        scale: the name of a file in config/scale/.
        wanted: studies as `NAME`, or `NAME,NAME:REPEATS`, in the order wanted; empty for all that config/study has,
            those that others refer to first, with one run of each variant and then with all.

    Returns:
        The entries of `wanted` that can run here, and for each other one a sentence that says why it cannot.

    Raises:
        ConfigError: an entry is not of that form, there is no such study, or a study's configuration is wrong.
    """
    files = Project(root=root, workdir=workdir).study_files
    first = ",".join(name for name in FIRST if name in files)
    entries = list(wanted) or [f"{first}:1", first, *sorted(set(files) - set(FIRST))]
    gpus = count_gpus() if scale == "gpu" else None
    chosen, left_out = [], []
    for entry in entries:
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ConfigError(f"'{entry}' names no study", where="STUDIES", expected="NAME, or NAME,NAME:REPEATS")
        runnable_ = []
        for name in match["studies"].split(","):
            if name not in files:
                raise ConfigError(f"there is no study '{name}'", where="STUDIES", next_step=near(name, files))
            needed = gpus_needed(root, workdir, scale, name)
            if gpus is None or needed <= gpus:
                runnable_.append(name)
            else:
                left_out.append(f"{name}: left out, it needs {_gpus(needed)}, and there {_are(gpus)}")
        if runnable_:
            chosen.append(",".join(runnable_) + (match["repeats"] or ""))
    return chosen, list(dict.fromkeys(left_out))


def gpus_needed(root: Path, workdir: Path, scale: str, study: str) -> int:
    """Return the most processes, and so GPUs, that a variant of `study` trains on at `scale`."""
    plan = make_plan(root, workdir, {"studies": [study], "scale": scale}, write=False)
    configs = [variant.composed.config for variant in plan.studies[study].variants]
    return max(int(lookup(config, "distributed.world_size") or 1) for config in configs)


def _gpus(count: int) -> str:
    return "a GPU" if count == 1 else f"{count} GPUs"


def _are(gpus: int) -> str:
    return "is one" if gpus == 1 else f"are {gpus}" if gpus else "is none"
