"""Finding accelerators without importing torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from steptrace.config import gpus

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("visible", "count"), [("0,1", 2), ("", 0), ("-1", 0), ("GPU-abc", 1), ("MIG-1,MIG-2", 2)])
def test_visible_devices_are_counted(monkeypatch, visible, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.count_gpus() == count


def test_a_divided_gpu_is_its_parts(monkeypatch):
    """NVML as it answers for a whole GPU, one that cannot be divided, and one with two instances in seven places."""
    import pynvml

    def mode(handle):
        if handle == "old":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return (int(handle == "divided"), 0)

    def instance(_, place):
        if place not in (1, 4):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return f"MIG-{place}"

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": ["whole", "divided", "old"].__getitem__,
        "nvmlDeviceGetUUID": lambda handle: handle if handle.startswith("MIG") else f"GPU-{handle}",
        "nvmlDeviceGetMigMode": mode,
        "nvmlDeviceGetMaxMigDeviceCount": lambda _: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": instance,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    assert gpus.nvidia_gpus() == ["GPU-whole", "MIG-1", "MIG-4", "GPU-old"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus.count_gpus() == 4


def test_amd_gpus_are_the_nodes_with_a_gpu_id(tmp_path):
    for name, content in (("0", "0\n"), ("1", "51110\n"), ("2", "27451\n"), ("3", "?")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "gpu_id").write_text(content)
    assert gpus._amd_gpus(tmp_path) == 2
    assert gpus._amd_gpus(tmp_path / "nowhere") == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", False),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", True),
        ("cuda = None\nhip = '6.4'\n", True),
    ],
)
def test_torch_build_is_read_from_its_version_file(tmp_path, monkeypatch, text, expected):
    (tmp_path / "version.py").write_text(text)

    class Spec:
        origin = str(tmp_path / "__init__.py")

    monkeypatch.setattr("importlib.util.find_spec", lambda _: Spec)
    assert gpus.torch_has_gpu_support() is expected


def test_planning_does_not_import_torch(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom steptrace.config.plan import make_plan\n"
        "make_plan(Path(sys.argv[1]), Path(sys.argv[2]), {'studies': ['masked_loss']})\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(ROOT), str(tmp_path)], check=True)
