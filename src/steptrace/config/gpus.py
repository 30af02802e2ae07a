"""Which accelerators this machine has, found out without importing torch."""

import importlib.util
import os
import re
from pathlib import Path


def count_gpus() -> int:
    """Return how many NVIDIA or AMD GPUs this process may use; CUDA_VISIBLE_DEVICES counts, 0 if none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() and name.strip() != "-1"])
    return len(nvidia_gpus()) or _amd_gpus()


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

    def is_gpu(node: Path) -> bool:
        try:
            return int((node / "gpu_id").read_text()) != 0
        except (OSError, ValueError):
            return False

    return sum(is_gpu(node) for node in nodes.glob("*"))


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
    return "gpu" if count_gpus() and torch_has_gpu_support() else "cpu"
