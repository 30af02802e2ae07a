import platform
import subprocess

import psutil
import pytest
import torch

from steptrace import machine


def collect_environment():
    return machine.environment(
        {"python": platform.python_version(), "torch": torch.__version__, "cuda": None, "gpu": None}
    )


def git(folder, *arguments):
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_a_cpu_run_says_nothing_about_a_gpu():
    environment = collect_environment()
    assert (environment.gpu, environment.gpu_memory_bytes, environment.driver) == (None, None, None)
    assert environment.gpu_count == 0
    assert environment.memory_bytes == psutil.virtual_memory().total
    assert environment.torch == torch.__version__
    assert environment.cpu
    assert environment.host


def test_outside_a_repository_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    environment = collect_environment()
    assert environment.git_commit is None
    assert environment.git_dirty is None


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert collect_environment().git_commit is None


@pytest.mark.parametrize("change", ["none", "edit", "untracked file"])
def test_a_repository_gives_its_commit_and_whether_tracked_files_changed(tmp_path, monkeypatch, change):
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "first")
    if change == "edit":
        (tmp_path / "file").write_text("two")
    if change == "untracked file":
        (tmp_path / "other").write_text("two")
    monkeypatch.chdir(tmp_path)
    environment = collect_environment()
    assert environment.git_commit == git(tmp_path, "rev-parse", "HEAD")
    assert environment.git_dirty is (change == "edit")
