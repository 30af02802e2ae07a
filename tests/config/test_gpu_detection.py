"""Finding accelerators without importing torch."""

import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from steptrace import machine

ROOT = Path(__file__).parents[2]


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
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
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


def test_planning_does_not_import_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom steptrace.config.plan import make_plan\n"
        "make_plan(Path(sys.argv[1]), Path(sys.argv[2]), {'studies': ['masked_loss']})\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(ROOT), str(tmp_path)], check=True)
