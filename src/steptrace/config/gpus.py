"""Which accelerators this machine has; torch is not imported."""

import importlib.util
import itertools
import os
import re
from pathlib import Path
from typing import Final

_DEVICES: Final = Path("/dev")
#: Each node of AMD's driver; a CPU's has a `gpu_id` of 0.
_AMD_NODES: Final = Path("/sys/class/kfd/kfd/topology/nodes")


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use: what CUDA_VISIBLE_DEVICES lists, else their indices."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [str(index) for index in range(gpus_here())]
    return [*itertools.takewhile(lambda name: name not in ("", "-1"), map(str.strip, listed.split(",")))]


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
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return True  # unusual build; let the training find out
    return bool(re.search(r"^(cuda|hip)\b.*=\s*['\"]", text, re.MULTILINE))


def usable_gpus() -> int:
    """Return how many GPUs trainings may use: none on a machine without, whatever a variable lists."""
    return len(visible_gpus()) if gpus_here() else 0


def resolve_scale(scale: str) -> str:
    """Return `cpu` or `gpu`: as asked, and for `auto` by what this machine and its torch can do."""
    if scale != "auto":
        return scale
    return "gpu" if usable_gpus() and torch_has_gpu_support() else "cpu"
