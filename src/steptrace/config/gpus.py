"""Which accelerators this machine has; torch is not imported."""

import contextlib
import importlib.util
import itertools
import os
import re
from pathlib import Path

#: What a driver for NVIDIA's GPUs makes in /dev: on servers, on Tegra, and in Windows' Linux.
_NVIDIA_NODES = ("nvidia[0-9]*", "nvhost-gpu", "dxg")


def count_gpus() -> int:
    """Return how many NVIDIA or AMD GPUs this process may use; CUDA_VISIBLE_DEVICES counts, 0 if none."""
    uuids = nvidia_gpus()
    visible = visible_gpus(uuids)
    return len(uuids) or _amd_gpus() if visible is None else len(visible)


def visible_gpus(uuids: list[str]) -> list[str] | None:
    """Return what CUDA_VISIBLE_DEVICES lists: indices or UUIDs; None where it is not set.

    As CUDA reads it: an entry that names no GPU does not count, nor does what comes after it. Where nothing tells of
    any GPU, every entry may name one: see `has_gpu`.

    Args:
        uuids: the machine's `nvidia_gpus`.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return None
    names = itertools.takewhile(lambda name: name not in ("", "-1"), map(str.strip, listed.split(",")))
    count = len(uuids) or _amd_gpus()
    return [*itertools.takewhile(lambda name: _names_gpu(name, count, uuids), names)] if count else [*names]


def _names_gpu(name: str, count: int, uuids: list[str]) -> bool:
    if name.isdecimal():
        return int(name) < count
    name = name.upper()
    if any(uuid.upper().startswith(name) for uuid in uuids):
        return True
    # NVML lists whole GPUs, not the instances of a divided one, and none of AMD's.
    return name.startswith("MIG-") or (name.startswith("GPU-") and not uuids)


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Return whether there is a GPU, listed or not; in containers without NVML the driver's devices tell."""
    nodes = (node for pattern in _NVIDIA_NODES for node in devices.glob(pattern))
    return bool(nvidia_gpus() or _amd_gpus() or next(nodes, None))


def nvidia_gpus() -> list[str]:
    """Return the UUID of every NVIDIA GPU by index, empty without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _amd_gpus(nodes: Path = Path("/sys/class/kfd/kfd/topology/nodes")) -> int:
    """Return the number of AMD GPUs; a CPU's node has a `gpu_id` of 0."""
    count = 0
    for node in nodes.glob("*/gpu_id"):
        with contextlib.suppress(OSError, ValueError):
            count += int(node.read_text()) != 0
    return count


def torch_has_gpu_support() -> bool:
    """Return whether the installed torch was built for CUDA or ROCm, by its version file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return True  # unusual build; let the training find out
    return bool(re.search(r"^(cuda|hip)\b.*=\s*['\"]", text, re.MULTILINE))


def resolve_scale(scale: str) -> str:
    """Return `cpu` or `gpu`: as asked, and for `auto` by what this machine and its torch can do."""
    if scale != "auto":
        return scale
    return "gpu" if count_gpus() and has_gpu() and torch_has_gpu_support() else "cpu"
