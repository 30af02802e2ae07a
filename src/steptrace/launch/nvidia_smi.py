"""`nvidia-smi` for a program that is followed on a virtual GPU, where the machine has none.

Many training scripts ask it once for a log. It answers for the named GPU, which is idle: figures that
a prediction does not know, such as clocks, are `[N/A]`, as in the real one where a GPU does not report a figure.

The file runs as a program of its own, by its path, so it imports the standard library only.
"""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from steptrace.estimate.driver import DriverFacts

NAME: Final = "nvidia-smi"
_MIB: Final = 2**20
#: The answer for a figure that is not known.
_UNKNOWN: Final = "[N/A]"


def add_nvidia_smi(folder: Path, environment: dict[str, str], driver: "DriverFacts", gpus: int) -> None:
    """Let a program with these environment variables, and its children, find `nvidia-smi`, unless the machine has one.

    Args:
        folder: a new folder for the command, which must last as long as the program.
        environment: the program's environment variables, whose PATH is changed.
        driver: the properties of the virtual GPUs.
        gpus: their number.
    """
    path = environment.get("PATH", os.defpath)
    if shutil.which(NAME, path=path) is not None:
        return
    folder.mkdir()
    facts = {
        "name": driver.name,
        "capability": driver.capability,
        "memory_bytes": driver.memory_bytes,
        "cuda": driver.cuda,
        "gpus": gpus,
    }
    # -I -S: neither steptrace's hook nor the program's packages are loaded.
    words = [sys.executable, "-I", "-S", __file__, json.dumps(facts)]
    command = folder / NAME
    command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    environment["PATH"] = os.pathsep.join([str(folder), path])


def answer(facts: Mapping[str, Any], options: Sequence[str]) -> str:
    """What `nvidia-smi` prints with these options.

    Args:
        facts: `name`, `capability`, `memory_bytes` and `cuda` of the driver's facts, and the number of `gpus`.
        options: the command's arguments, such as `--query-gpu=name --format=csv`.
    """
    named = dict(option.partition("=")[::2] for option in _joined(options))
    gpus = [_properties(facts, index) for index in range(facts["gpus"])]
    chosen = named.get("-i", named.get("--id"))
    if chosen is not None:
        names = set(chosen.split(","))
        gpus = [gpu for gpu in gpus if names & {gpu["index"][0], gpu["uuid"][0]}]
    if any(name.startswith("--query-") and name != "--query-gpu" for name in named):
        return ""  # as for processes: none runs there
    if "-q" in named or "--query" in named:
        is_whole = "-d" not in named and "--display" not in named
        return "".join(_section(gpu, is_whole=is_whole) for gpu in gpus)
    if "--query-gpu" in named:
        return _table(named["--query-gpu"].split(","), gpus, named.get("--format", "csv").split(","))
    if "-L" in named or "--list-gpus" in named:
        return "".join(f"GPU {gpu['index'][0]}: {gpu['name'][0]} (UUID: {gpu['uuid'][0]})\n" for gpu in gpus)
    lines = [f"NVIDIA-SMI of a virtual GPU (steptrace predict)  CUDA Version: {facts['cuda']}"]
    lines += [f"  {gpu['index'][0]}  {gpu['name'][0]}  0MiB / {gpu['memory.total'][0]}MiB" for gpu in gpus]
    return "".join(f"{line}\n" for line in lines)


def _section(gpu: Mapping[str, tuple[str, str]], *, is_whole: bool) -> str:
    """What `-q` prints of one GPU: its name if `is_whole`, and its memory, by which programs choose a free GPU."""
    memory = gpu["memory.total"][0]
    name = (f"    Product Name                          : {gpu['name'][0]}",) if is_whole else ()
    lines = (
        f"GPU {gpu['index'][0]}",
        *name,
        "    FB Memory Usage",
        f"        Total                             : {memory} MiB",
        "        Used                              : 0 MiB",
        f"        Free                              : {memory} MiB",
    )
    return "".join(f"{line}\n" for line in lines)


def _joined(options: Sequence[str]) -> list[str]:
    """The options with their values behind a `=`, as one may also write them: `-i 0`, `--format csv`."""
    joined: list[str] = []
    for option in options:
        if joined and not option.startswith("-") and "=" not in joined[-1]:
            joined[-1] += f"={option}"
        else:
            joined.append(option)
    return joined


def _properties(facts: Mapping[str, Any], index: int) -> dict[str, tuple[str, str]]:
    """What is known of a GPU, by the names of `--query-gpu`: its value and its unit."""
    memory = str(facts["memory_bytes"] // _MIB)
    properties = {
        "index": (str(index), ""),
        "count": (str(facts["gpus"]), ""),
        "name": (facts["name"], ""),
        "uuid": (f"GPU-00000000-0000-0000-0000-{index:012d}", ""),
        "compute_cap": (".".join(map(str, facts["capability"])), ""),
        "memory.total": (memory, "MiB"),
        "memory.free": (memory, "MiB"),
        "memory.used": ("0", "MiB"),
        "utilization.gpu": ("0", "%"),
        "utilization.memory": ("0", "%"),
    }
    return properties | {"gpu_name": properties["name"], "gpu_uuid": properties["uuid"]}


def _table(names: Sequence[str], gpus: Sequence[Mapping[str, tuple[str, str]]], form: Sequence[str]) -> str:
    """Rows of comma-separated values, with a header and units unless `form` leaves them out."""
    names = [name.strip() for name in names]
    units = [next((gpu[name][1] for gpu in gpus if name in gpu), "") for name in names]
    rows = [] if "noheader" in form else [[f"{n} [{u}]" if u else n for n, u in zip(names, units, strict=True)]]
    for gpu in gpus:
        known = [gpu.get(name, (_UNKNOWN, "")) for name in names]
        rows.append([value if "nounits" in form or not unit else f"{value} {unit}" for value, unit in known])
    return "".join(f"{', '.join(row)}\n" for row in rows)


if __name__ == "__main__":
    sys.stdout.write(answer(json.loads(sys.argv[1]), sys.argv[2:]))
