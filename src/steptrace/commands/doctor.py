"""`steptrace doctor`: what this machine can measure, what is missing, and what to do about it.

`python -m steptrace.commands.doctor` is the part that uses the GPU. It is a process of its own, since the command does
not import torch.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from steptrace.commands.console import show
from steptrace.config.settings import Project, read_settings
from steptrace.config.yaml_file import read_yaml
from steptrace.documents.command_answers import DoctorAnswer, DoctorCheck, KnownStudy
from steptrace.errors import SteptraceError
from steptrace.exit_codes import ExitCode
from steptrace.extras import EXTRA_OF_MODULE, missing_package
from steptrace.format import columns
from steptrace.machine import torch_has_gpu_support, usable_gpus
from steptrace.torch_names import NEWEST, OLDEST, release_of

State = Literal["ok", "note", "missing", "broken"]
_GPU_CHECK_S: Final = 120.0
_CPUINFO: Final = Path("/proc/cpuinfo")
#: How x86 and Arm name units for bfloat16.
_BF16_FLAGS: Final = frozenset({"amx_bf16", "avx512_bf16", "bf16"})


@dataclass(frozen=True)
class Check:
    """One thing that was checked.

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
        "Look at PyTorch, processor, GPU, profiler and compilers, and list the studies of this folder. "
        "Exit code 1 if no study can run here; a missing GPU alone does not count."
    )


def run(arguments: argparse.Namespace) -> int:
    """Check, print, and return the exit code."""
    checks = [*_pytorch(), *_processor(), *_gpu(), *_compilers()]
    usable = all(check.state != "broken" for check in checks)
    studies = _studies()
    answer = DoctorAnswer(
        usable=usable,
        checks=tuple(DoctorCheck(**asdict(check)) for check in checks),
        studies=tuple(KnownStudy(**study) for study in studies),
    )
    show(arguments, answer, "\n".join([*_lines(checks), *_listed(studies)]))
    return ExitCode.DONE if usable else ExitCode.NOT_HELD


def _lines(checks: list[Check]) -> list[str]:
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.state.ljust(7)}  {check.name.ljust(width)}  {check.result}")
        lines.append(f"{' ' * (width + 11)}for: {check.allows}")
        lines += [f"{' ' * (width + 11)}next: {check.next_step}"] if check.next_step else []
    return lines


def _studies() -> list[dict[str, Any]]:
    """The studies that can be named in this folder: those of the project, and those that come with steptrace."""
    project = Project.here()
    default = list[str]()
    with contextlib.suppress(SteptraceError):  # the workflow reports errors in its settings
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
    first = "" if Path("Snakefile").is_file() else "steptrace init DIR && cd DIR && "
    missing = missing_package("snakemake")
    command = f"run one: {first}snakemake --cores all --config 'studies=[STUDY]'"
    return ["", *lines, *([missing] if missing else []), command]


def _pytorch() -> list[Check]:
    allows = "step times, operators and memory on the CPU; syncs predicted for a GPU"
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        next_step = f"pip install 'steptrace[{EXTRA_OF_MODULE['torch']}]'"
        return [Check("PyTorch", "broken", "not installed", allows, next_step)]
    result = f"{version}, built for {'GPUs' if torch_has_gpu_support() else 'CPUs'}"
    if OLDEST <= release_of(version) <= NEWEST:
        return [Check("PyTorch", "ok", result, allows)]
    oldest, newest = (".".join(map(str, release)) for release in (OLDEST, NEWEST))
    return [Check("PyTorch", "note", result, allows, f"steptrace was tried with PyTorch {oldest} to {newest}: use one")]


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
    return [gpu, profiler]


def _tried_on_gpu() -> dict[str, Any]:
    """The result of a process that uses the GPU."""
    command = [sys.executable, "-m", "steptrace.commands.doctor"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GPU_CHECK_S, check=False)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        return {"name": None, "kernels": None, "error": f"its check failed ({type(error).__name__})"}


def use_gpu() -> dict[str, Any]:
    """Run one profiled product on the first GPU.

    Returns:
        `name` of the GPU, `kernels` in the trace, and `error`; null if unknown.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    result: dict[str, Any] = {"name": None, "kernels": None, "error": None}
    try:
        result["name"] = torch.cuda.get_device_name(0)
        ones = torch.ones(64, 64, device="cuda")
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            torch.mm(ones, ones)
            torch.cuda.synchronize()
        events = profiler.events() or []
        result["kernels"] = sum(event.device_type.name == "CUDA" for event in events)
    except (RuntimeError, AssertionError) as error:  # a build without CUDA asserts
        result["error"] = str(error).splitlines()[0]
    return result


def _compilers() -> list[Check]:
    name = os.environ.get("CXX", "g++")
    cxx = shutil.which(name)
    allows = "the studies giou*, and step.compile on the CPU"
    next_step = None if cxx else "install g++ 9 or newer, or set CXX"
    checks = [Check("C++ compiler", "ok" if cxx else "missing", cxx or f"no {name}", allows, next_step)]
    if usable_gpus():
        home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
        nvcc = shutil.which("nvcc") or (str(home) if home.is_file() else None)
        allows = "the kernels of the studies giou*"
        next_step = None if nvcc else "install the CUDA toolkit of PyTorch's CUDA version, or set CUDA_HOME"
        checks.append(Check("nvcc", "ok" if nvcc else "missing", nvcc or "not found", allows, next_step))
    return checks


if __name__ == "__main__":
    print(json.dumps(use_gpu()))  # noqa: T201
