"""Where a run takes place: host, processor, GPU, versions, and the state of the working directory's repository."""

import os
import platform
import socket
import subprocess
from pathlib import Path

import psutil
import torch

import steptrace
from steptrace.record import Environment

_GIT_TIMEOUT_S = 10


def collect_environment(device: torch.device) -> Environment:
    """Describe this process's surroundings; what concerns a GPU is None unless `device` is one."""
    on_gpu = device.type == "cuda"
    gpu = torch.cuda.get_device_properties(device) if on_gpu else None
    commit = _git("rev-parse", "HEAD")
    changes = None if commit is None else _git("status", "--porcelain", "--untracked-files=no")
    return Environment(
        host=socket.gethostname(),
        os=_operating_system(),
        cpu=_cpu_model(),
        cpu_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        gpu=gpu.name if gpu else None,
        gpu_count=torch.cuda.device_count() if on_gpu else 0,
        gpu_memory_bytes=gpu.total_memory if gpu else None,
        driver=_driver_version() if on_gpu else None,
        cuda=torch.version.cuda,
        python=platform.python_version(),
        torch=str(torch.__version__),  # the installed package's own version may lack the build, as in 2.11.0+cu130
        steptrace=steptrace.__version__,
        git_commit=commit,
        git_dirty=None if changes is None else bool(changes),
    )


def _operating_system() -> str:
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']} ({platform.system()} {platform.release()})"
    except OSError:  # not a Linux with /etc/os-release
        return platform.platform()


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _driver_version() -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def _git(*arguments: str) -> str | None:
    """What git says in the working directory; None without git, or outside a repository."""
    try:
        answer = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
