"""The machine a program runs on, and the state of a folder's repository. Imports no torch."""

import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import steptrace
from steptrace.documents.run import Environment


def environment(process: Mapping[str, Any], folder: Path | None = None) -> Environment:
    """Describe this machine for a measured process.

    Args:
        process: its versions `python`, `torch` and `cuda`, and its `gpu` (`name`, `memory_bytes`, `count`, or None).
        folder: where to ask for the state of the repository; default: the working directory.
    """
    import psutil  # what asks for the number of cores alone needs it not

    gpu = process["gpu"]
    commit, dirty = git_state(folder)
    return Environment(
        host=socket.gethostname(),
        os=platform.platform(),
        cpu=cpu_model(),
        cpu_count=cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
        gpu=gpu["name"] if gpu else None,
        gpu_count=gpu["count"] if gpu else 0,
        gpu_memory_bytes=gpu["memory_bytes"] if gpu else None,
        driver=driver_version() if gpu else None,
        cuda=process["cuda"],
        python=process["python"],
        torch=process["torch"],
        steptrace=steptrace.__version__,
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


def cpu_count() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def driver_version() -> str | None:
    """The version of NVIDIA's driver; None without one."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def git_state(folder: Path | None = None) -> tuple[str | None, bool | None]:
    """The commit of a folder's repository, and whether tracked files differ from it; None without git or a repository.

    Example:
        commit, dirty = git_state()
    """
    commit = git(folder, "rev-parse", "HEAD")
    changes = None if commit is None else git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None else commit.decode().strip(), None if changes is None else bool(changes.strip())


def git(folder: Path | None, *arguments: str) -> bytes | None:
    """What git says in a folder; None without git, outside a repository, or where it refuses or takes ten seconds."""
    try:
        command = ["git", *arguments]
        answer = subprocess.run(command, cwd=folder, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None
