"""The machine as a run records it, and its accelerators, found without importing torch."""

import platform
import subprocess
from pathlib import Path

import psutil
import pynvml
import pytest
import torch

from documents import fill
from steptrace import machine
from steptrace.documents.probe import RankRecord


def collect_environment():
    process = {"python": platform.python_version(), "torch": str(torch.__version__)}
    return machine.environment(fill(RankRecord, process))


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


@pytest.mark.parametrize(
    ("visible", "listed"),
    [
        ("0,1", ["0", "1"]),
        ("", []),
        ("-1", []),
        ("1,-1,0", ["1"]),  # CUDA stops at what is none
        ("GPU-ab1, MIG-cd2", ["GPU-ab1", "MIG-cd2"]),
        (None, ["0", "1", "2"]),
    ],
)
def test_visible_gpus(monkeypatch: pytest.MonkeyPatch, visible: str | None, listed: list[str]) -> None:
    monkeypatch.setattr(machine, "gpus_here", lambda: 3)
    monkeypatch.setattr(machine, "_uuids", list)  # as in a container without NVML
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.visible_gpus() == listed


@pytest.mark.parametrize(
    ("visible", "listed"),
    [
        ("1,0", ["1", "0"]),
        ("0,9,1", ["0"]),  # CUDA shows those before the first that is not there
        ("nope", []),
        ("GPU-ffff,0", []),
        ("0,0", []),  # listed twice: CUDA shows none
        ("0,GPU-aa1", []),
        ("GPU-bb2,GPU-aa1", ["GPU-bb2", "GPU-aa1"]),
        ("GPU-b", ["GPU-b"]),  # the beginning of a UUID
        ("GPU-", []),  # of all
        ("MIG-aa1,MIG-aa2", ["MIG-aa1", "MIG-aa2"]),
    ],
)
def test_visible_gpus_are_those_that_cuda_shows(
    monkeypatch: pytest.MonkeyPatch, visible: str, listed: list[str]
) -> None:
    monkeypatch.setattr(machine, "_uuids", lambda: ["GPU-aa1", "GPU-bb2"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.visible_gpus() == listed


@pytest.mark.parametrize(
    ("node", "amd", "visible", "scale"),
    [
        (None, 0, "0,1", "cpu"),  # as a shell's start-up file leaves it on a machine that has none
        ("nvidiactl", 0, "0", "cpu"),
        ("nvidia1", 0, "1,GPU-a", "gpu"),  # a container without NVML
        (None, 2, "1,2", "gpu"),
        (None, 2, "", "cpu"),
    ],
)
def test_auto_is_gpu_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, node: str | None, amd: int, visible: str, scale: str
) -> None:
    def no_nvml() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    if node is not None:
        (tmp_path / node).touch()
    for number in range(amd + 1):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "gpu_id").write_text(f"{51110 * number}\n")
    monkeypatch.setattr(pynvml, "nvmlInit", no_nvml)
    monkeypatch.setattr(machine, "_DEVICES", tmp_path)
    monkeypatch.setattr(machine, "_AMD_NODES", tmp_path)
    monkeypatch.setattr(machine, "torch_has_gpu_support", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.resolve_scale("auto") == scale
    monkeypatch.setattr(machine, "torch_has_gpu_support", lambda: False)
    assert machine.resolve_scale("auto") == "cpu"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", False),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", True),
        ("cuda = None\nhip = '6.4'\n", True),
    ],
)
def test_torch_build_is_read_from_its_version_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, *, expected: bool
) -> None:
    (tmp_path / "version.py").write_text(text)

    class Spec:
        origin = str(tmp_path / "__init__.py")

    monkeypatch.setattr("importlib.util.find_spec", lambda _: Spec)
    assert machine.torch_has_gpu_support() is expected
