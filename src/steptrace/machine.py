"""The machine a program runs on, and the state of a folder's repository. Imports no torch."""

import os
import platform
import subprocess
from pathlib import Path

_GIT_TIMEOUT_S = 10


def operating_system() -> str:
    """Its name and kernel, such as `Debian GNU/Linux 12 (Linux 6.1)`."""
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']} ({platform.system()} {platform.release()})"
    except OSError:  # not a Linux with /etc/os-release
        return platform.platform()


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
    commit = _git(folder, "rev-parse", "HEAD")
    changes = None if commit is None else _git(folder, "status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else bool(changes)


def _git(folder: Path | None, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
