"""Which studies a GPU node runs, and in which order."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from steptrace.config.gpus import count_gpus
from steptrace.config.plan import make_plan
from steptrace.config.settings import Project
from steptrace.errors import ConfigError
from steptrace.names import near

#: The studies that the others refer to: first to run, last to give way to the size limit.
FIRST: Final = ("masked_loss", "giou")
_ENTRY: Final = re.compile(r"(?P<studies>[^:,]+(,[^:,]+)*)(?P<repeats>:[1-9][0-9]*)?")


def runnable(root: Path, workdir: Path, scale: str, wanted: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """The entries of `wanted` with the studies that this machine has GPUs for, and a sentence for each other study.

    An entry is `NAME`, or `NAME,NAME:REPEATS`. The default is everything of config/study, the studies that others
    refer to first, with one run of each variant and then with all.

    Raises:
        ConfigError: an entry is not of that form, there is no such study, or a study's configuration is wrong.
    """
    files = Project(root=root, workdir=workdir).study_files
    first = ",".join(name for name in FIRST if name in files)
    chosen, left_out = [], {}
    for entry in list(wanted) or [f"{first}:1", first, *sorted(set(files) - set(FIRST))]:
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ConfigError(f"'{entry}' names no study", where="STUDIES", expected="NAME, or NAME,NAME:REPEATS")
        names = match["studies"].split(",")
        for name in names:
            if name not in files:
                raise ConfigError(f"there is no study '{name}'", where="STUDIES", next_step=near(name, files))
            gpus, needed = count_gpus(), gpus_needed(root, workdir, scale, name)
            if scale == "gpu" and needed > gpus:
                left_out[name] = f"{name}: left out, it needs {needed} GPUs; here: {gpus}"
        if kept := [name for name in names if name not in left_out]:
            chosen.append(",".join(kept) + (match["repeats"] or ""))
    return chosen, list(left_out.values())


def gpus_needed(root: Path, workdir: Path, scale: str, study: str) -> int:
    """The most processes, and so GPUs, that a variant of `study` trains on at `scale`."""
    plan = make_plan(root, workdir, {"studies": [study], "scale": scale}, write=False)
    return max(int(v.config["distributed"]["world_size"]) for v in plan.studies[study].variants)
