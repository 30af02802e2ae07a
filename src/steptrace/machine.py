"""The machine a program runs on, its processor and accelerators, and the state of a repository. Imports no torch."""

import contextlib
import ctypes
import importlib.util
import itertools
import os
import platform
import re
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from steptrace.documents.probe import RankRecord
from steptrace.documents.run import Environment
from steptrace.version import VERSION

_DEVICES: Final = Path("/dev")
#: Each node of AMD's driver; a CPU's has a `gpu_id` of 0.
_AMD_NODES: Final = Path("/sys/class/kfd/kfd/topology/nodes")


def environment(process: RankRecord, folder: Path | None = None) -> Environment:
    """Describe this machine for a measured process.

    Args:
        process: its record.
        folder: where to ask for the state of the repository; default: the working directory.
    """
    import psutil  # what asks for the number of cores alone needs it not

    gpu = process.gpu
    commit, dirty = git_state(folder)
    return Environment(
        host=socket.gethostname(),
        os=platform.platform(),
        cpu=cpu_model(),
        cpu_count=cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
        gpu=gpu.name if gpu else None,
        gpu_count=gpu.count if gpu else 0,
        gpu_memory_bytes=gpu.memory_bytes if gpu else None,
        driver=driver_version() if gpu else None,
        cuda=process.cuda,
        python=process.python,
        torch=process.torch,
        steptrace=VERSION,
        git_commit=commit,
        git_dirty=dirty,
    )


def cpu_model() -> str:
    """The processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


#: glibc's number for the size from which a block of memory gets its own mapping, and that size.
_MMAP_THRESHOLD: Final = -3
_MAPPED_FROM: Final = 1 << 20


def return_freed_arrays() -> None:
    """Let glibc give freed arrays of a megabyte or more back to the system at once; elsewhere nothing changes.

    Its default soon keeps blocks of up to 32 MB, so the memory of one table would be kept while the next one is made.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _MAPPED_FROM)


def cpu_count() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def driver_version() -> str | None:
    """The version of NVIDIA's driver; None without one."""
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    return None


def git_state(folder: Path | None = None) -> tuple[str | None, bool | None]:
    """The commit of a folder's repository, and whether tracked files differ from it; None without git or a repository.

    Example:
        commit, dirty = git_state()
    """
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return _git(folder, "rev-parse", "HEAD"), None if changes is None else bool(changes)


def _git(folder: Path | None, *arguments: str) -> str | None:
    """What git says in a folder; None without git, outside a repository, or where it refuses or takes ten seconds."""
    try:
        return subprocess.check_output(
            ["git", *arguments], cwd=folder, stderr=subprocess.DEVNULL, timeout=10, text=True, errors="replace"
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return None


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use: what CUDA_VISIBLE_DEVICES lists, else their indices.

    The list is read as CUDA reads it: it ends before the first name that no GPU here has, and a GPU listed twice hides
    all of them (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars, torch.cuda.device_count). In a
    machine whose GPUs cannot be asked for their UUIDs, names are taken as they are.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [str(index) for index in range(gpus_here())]
    names = [*itertools.takewhile(lambda name: name not in ("", "-1"), map(str.strip, listed.split(",")))]
    uuids = _uuids()
    if uuids:
        names = [*itertools.takewhile(lambda name: _uuid_of(name, uuids) is not None, names)]
        ids = gpu_ids(names)
        return names if len(set(ids)) == len(ids) else []
    return names


def gpu_ids(names: Sequence[str]) -> list[str]:
    """Return what tells each of these GPUs from all others, whatever it is called: its UUID.

    The same GPU may be called `0` in one job and `GPU-4f2a...` in another. Two GPUs may both be called `0`, as in two
    containers. Numbers are those of nvidia-smi. A name that no GPU here has is returned as it is.

    Args:
        names: as `visible_gpus` returns them.
    """
    uuids = _uuids()
    return [_uuid_of(name, uuids) or name for name in names]


def _uuid_of(name: str, uuids: Sequence[str]) -> str | None:
    """The UUID of the GPU that a name means, of a MIG instance its name; None where none here, or several, have it."""
    if name.isdecimal():
        return uuids[int(name)] if int(name) < len(uuids) else None
    if name.startswith("MIG-"):
        return name
    same = [uuid for uuid in uuids if uuid.startswith(name)]  # CUDA takes the beginning of a UUID, too
    return same[0] if len(same) == 1 else None


def _uuids() -> list[str]:
    """The UUID of each GPU in this machine, in nvidia-smi's order; of AMD's in the driver's."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        uuids = []
    return uuids or [uuid for node in sorted(_AMD_NODES.glob("*"), key=_number) if (uuid := _amd_id(node))]


def _number(node: Path) -> int:
    return int(node.name) if node.name.isdecimal() else 0


def _amd_id(node: Path) -> str | None:
    """The unique id of a node of AMD's driver; None of a processor."""
    with contextlib.suppress(OSError):
        if (node / "gpu_id").read_text(encoding="ascii").strip() not in ("", "0"):
            text = (node / "properties").read_text(encoding="ascii")
            match = re.search(r"^unique_id (\d+)$", text, re.MULTILINE)
            return f"GPU-{int(match[1]):x}" if match and int(match[1]) else f"node-{node.name}"
    return None


def gpus_here() -> int:
    """Return how many NVIDIA or AMD GPUs this machine has; in containers without NVML the driver's devices tell."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        count = len([*_DEVICES.glob("nvidia[0-9]*")])
    return count or sum(node.read_text().strip() not in ("", "0") for node in _AMD_NODES.glob("*/gpu_id"))


def torch_has_gpu_support() -> bool:
    """Return whether the installed torch was built for CUDA or ROCm, by its version file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    return bool(re.search(r"^(cuda|hip)\b.*=\s*['\"]", text, re.MULTILINE))


def usable_gpus() -> int:
    """Return how many GPUs trainings may use: none on a machine without, whatever a variable lists."""
    return len(visible_gpus()) if gpus_here() else 0


def resolve_scale(scale: str) -> str:
    """Return `cpu` or `gpu`: as asked, and for `auto` by what this machine and its torch can do."""
    if scale != "auto":
        return scale
    return "gpu" if usable_gpus() and torch_has_gpu_support() else "cpu"
