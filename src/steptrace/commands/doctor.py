"""`steptrace doctor`: what this machine can measure, and what to do about what is missing."""

import argparse
import contextlib
import errno
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from steptrace import format as fmt
from steptrace.commands.output import Colour, coloured, columns, progress, show
from steptrace.config.gpus import torch_has_gpu_support, usable_gpus
from steptrace.errors import SteptraceError
from steptrace.machine import cpu_count

EXIT_UNUSABLE: Final = 1
State = Literal["ok", "note", "missing", "broken"]
_COLOURS: Final[dict[State, Colour]] = {"ok": "green", "note": "yellow", "missing": "yellow", "broken": "red"}
#: What a study of the default size leaves behind, several times over.
_LEAST_FREE_BYTES: Final = 2 * 2**30
#: A DataLoader's workers hand over batches in shared memory; containers often have 64 MB of it.
_LEAST_SHARED_BYTES: Final = 256 * 2**20
#: Of the load average for each core: above it, other work disturbs step times.
_MOST_LOAD: Final = 0.5
_GPU_CHECK_S: Final = 120.0
_CPUINFO: Final = Path("/proc/cpuinfo")
#: How x86 and Arm name units for bfloat16.
_BF16_FLAGS: Final = frozenset({"amx_bf16", "avx512_bf16", "bf16"})


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    `state` is `missing` where something cannot be measured without it, and `broken` where nothing can.
    """

    name: str
    state: State
    result: str
    allows: str
    next_step: str | None = None


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's argument."""
    command.description = (
        "Look at PyTorch, GPU, NVML, profiler, compilers, locks, disk and load, and list the studies of this folder. "
        "Exit code 1 if no study can run here; a missing GPU is no such reason."
    )


def run(arguments: argparse.Namespace) -> int:
    """Check, print, and return the exit code."""
    with progress() as line:
        checks: list[Check] = []
        for look in CHECKS:
            line.say(f"checking {look.__name__.strip('_').replace('_', ' ')}")
            checks += look()
    usable = all(check.state != "broken" for check in checks)
    studies = _studies()
    document = {"usable": usable, "checks": [asdict(check) for check in checks], "studies": studies}
    show(arguments, document, "\n".join([*_lines(checks), *_listed(studies)]))
    return 0 if usable else EXIT_UNUSABLE


def _lines(checks: list[Check]) -> list[str]:
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        state = coloured(check.state.ljust(7), _COLOURS[check.state], sys.stdout)
        lines.append(f"{state}  {check.name.ljust(width)}  {check.result}")
        lines.append(f"{' ' * (width + 11)}for: {check.allows}")
        lines += [f"{' ' * (width + 11)}next: {check.next_step}"] if check.next_step else []
    return lines


def _studies() -> list[dict[str, Any]]:
    """The studies that can be named in this folder: own ones and those that come with steptrace."""
    from steptrace.commands.named_study import project_here
    from steptrace.config.documents import read_yaml
    from steptrace.config.settings import read_settings

    project, default = project_here(), list[str]()
    with contextlib.suppress(SteptraceError):  # the workflow reports what is wrong with its settings
        default = read_settings(project, {}).studies
    studies = []
    for name, file in sorted(project.study_files.items()):
        try:
            content = read_yaml(file)
        except SteptraceError as error:
            content = {"title": str(error).splitlines()[0]}
        variants = len(content.get("variants") or ())
        row = {
            "name": name,
            "title": str(content.get("title", name)),
            "variants": variants,
            "by_default": name in default,
        }
        studies.append(row)
    return studies


def _listed(studies: list[dict[str, Any]]) -> list[str]:
    rows = [
        (study["name"], str(study["variants"]), "yes" if study["by_default"] else "", study["title"])
        for study in studies
    ]
    lines = columns(("study", "variants", "by default", "title"), rows)
    return ["", *lines, "run one: snakemake --cores all --config 'studies=[STUDY]'"]


def _pytorch() -> list[Check]:
    allows = "step times, operators and memory on the CPU; syncs predicted for a GPU"
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return [Check("PyTorch", "broken", "not installed", allows, "pip install torch")]
    old = tuple(int(part) for part in version.split(".")[:2]) < (2, 11)
    result = f"{version}, built for {'GPUs' if torch_has_gpu_support() else 'CPUs'}"
    return [Check("PyTorch", "note" if old else "ok", result, allows, "use PyTorch 2.11 or newer" if old else None)]


def _processor() -> list[Check]:
    """Whether the CPU computes in bfloat16, which PyTorch otherwise imitates many times slower than float32."""
    try:
        flags = set(_CPUINFO.read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return []
    units = sorted(flags & _BF16_FLAGS)
    allows = "variants with precision=bf16 on the CPU"
    if units:
        return [Check("CPU", "ok", f"bfloat16 units ({', '.join(units)})", allows)]
    next_step = "on this CPU they are many times slower than float32; scale.at_most_s ends their steps early"
    return [Check("CPU", "note", "no bfloat16 units (neither amx_bf16 nor avx512_bf16)", allows, next_step)]


def _gpu() -> list[Check]:
    allows = "measured syncs, kernels, GPU busy time, what a sync costs"
    gpus = usable_gpus()
    if not gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "no GPU found" if visible is None else f"no GPU found, and CUDA_VISIBLE_DEVICES is '{visible}'"
        return [Check("GPU", "missing", why, allows, "run the same command on a GPU node: docs/gpu-node.md")]
    if not torch_has_gpu_support():
        result = f"{gpus} found, but PyTorch is built for CPUs"
        return [Check("GPU", "missing", result, allows, "install PyTorch's CUDA build")]
    tried = _tried_on_gpu()
    if tried["error"] is not None:
        return [Check("GPU", "missing", f"PyTorch cannot use it: {tried['error']}", allows, "see nvidia-smi")]
    gpu = Check("GPU", "ok", f"{gpus} x {tried['name']}", "step times on the GPU by CUDA events")
    profiler = Check("Profiler", "ok", "the kernel of a product is in its trace", allows)
    if not tried["kernels"]:
        next_step = "CUPTI records nothing: is another profiler attached, or libcupti missing?"
        profiler = Check("Profiler", "missing", "no kernel of a product in its trace", allows, next_step)
    return [gpu, profiler, _nvml()]


def _tried_on_gpu() -> dict[str, Any]:
    """What a process that uses the GPU says; this one imports no torch."""
    command = [sys.executable, "-m", "steptrace.train.gpu_check"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GPU_CHECK_S, check=False)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        return {"name": None, "kernels": None, "error": f"its check failed ({type(error).__name__})"}


def _nvml() -> Check:
    import pynvml

    allows = "utilisation, clocks, temperature and throttling beside the step times"
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        used = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
        clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Check("NVML", "missing", str(error), allows, "install NVIDIA's driver, or mount it into the container")
    if used > 10:
        result = f"the GPU is {used} % busy, at {clock} MHz"
        return Check("NVML", "note", result, allows, "wait until it is idle: other work disturbs step times")
    return Check("NVML", "ok", f"{used} % busy, {clock} MHz", allows)


def _compilers() -> list[Check]:
    name = os.environ.get("CXX", "g++")
    cxx = shutil.which(name)
    allows = "the studies giou*, and step.compile on the CPU"
    checks = [
        Check("C++ compiler", "missing", f"no {name}", allows, "install g++ 9 or newer, or set CXX")
        if cxx is None
        else Check("C++ compiler", "ok", cxx, allows)
    ]
    if usable_gpus():
        home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
        nvcc = shutil.which("nvcc") or (str(home) if home.is_file() else None)
        allows = "the kernels of the studies giou*"
        next_step = None if nvcc else "install the CUDA toolkit of PyTorch's CUDA version, or set CUDA_HOME"
        checks.append(Check("nvcc", "ok" if nvcc else "missing", nvcc or "not found", allows, next_step))
    return checks


def _locks() -> list[Check]:
    from steptrace.train.devices import lock_folder

    allows = "one training at a time on each device"
    try:
        folder = lock_folder()
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    except (SteptraceError, OSError) as error:
        next_step = "set STEPTRACE_LOCKS to a local folder that is yours alone (mode 0700) and can be written to"
        return [Check("Locks", "broken", str(error), allows, next_step)]
    return [Check("Locks", "ok", str(folder), allows)]


def _disk() -> list[Check]:
    allows = "results, traces and pages"
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    if not os.access(here, os.W_OK):
        return [Check("Disk", "broken", f"{here} cannot be written to", allows, "use another folder")]
    small = free < _LEAST_FREE_BYTES
    next_step = "make room: traces are some 100 MB a study" if small else None
    return [Check("Disk", "note" if small else "ok", f"{fmt.size_bytes(free)} free here", allows, next_step)]


def _shared_memory() -> list[Check]:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return []
    small = free < _LEAST_SHARED_BYTES
    next_step = "start the container with --shm-size=2g" if small else None
    result = f"{fmt.size_bytes(free)} free"
    return [Check("Shared memory", "note" if small else "ok", result, "data.num_workers above 0", next_step)]


def _load() -> list[Check]:
    cores = cpu_count()
    load = os.getloadavg()[0]
    busy = load / cores > _MOST_LOAD
    next_step = "wait until the machine is idle: other work disturbs step times" if busy else None
    result = f"load {load:.1f} on {cores} cores"
    return [Check("Load", "note" if busy else "ok", result, "steady step times", next_step)]


_Look = Callable[[], list[Check]]
CHECKS: Final[tuple[_Look, ...]] = (
    _pytorch,
    _processor,
    _gpu,
    _compilers,
    _locks,
    _disk,
    _shared_memory,
    _load,
)
