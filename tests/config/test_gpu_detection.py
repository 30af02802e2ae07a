"""Finding accelerators without importing torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from steptrace.config import gpus

ROOT = Path(__file__).parents[2]


WHOLE = ["GPU-ab1", "GPU-cd2", "GPU-ef3"]


@pytest.mark.parametrize(
    ("visible", "uuids", "count"),
    [
        ("0,1", WHOLE, 2),
        ("", WHOLE, 0),
        ("-1", WHOLE, 0),
        ("GPU-a", WHOLE, 1),
        ("gpu-AB1", WHOLE, 1),
        ("0,3,1", WHOLE, 1),  # CUDA stops at what is none
        ("GPU-no,0", WHOLE, 0),
        ("1,-1,0", WHOLE, 1),
        ("none", WHOLE, 0),
        ("MIG-ef3, 0", WHOLE, 2),  # an instance of a divided GPU, which NVML does not list
    ],
)
def test_visible_devices_are_counted(monkeypatch, visible, uuids, count):
    monkeypatch.setattr(gpus, "nvidia_gpus", lambda: uuids)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.count_gpus() == count


@pytest.mark.parametrize(
    ("amd", "node", "visible", "scale"),
    [
        (0, None, "0,1", "cpu"),  # as a shell's start-up file leaves it on a machine that has none
        (0, "nvidiactl", "0", "cpu"),
        (0, "nvidia1", "1,GPU-a", "gpu"),  # a container without NVML
        (2, None, "1,2", "gpu"),
        (2, None, "2", "cpu"),
        (2, None, "GPU-1f00", "gpu"),  # AMD's UUIDs are not known
    ],
)
def test_auto_is_gpu_where_one_of_the_list_is_there(monkeypatch, tmp_path, amd, node, visible, scale):
    if node is not None:
        (tmp_path / node).touch()
    has_gpu = gpus.has_gpu
    monkeypatch.setattr(gpus, "has_gpu", lambda: has_gpu(tmp_path))
    monkeypatch.setattr(gpus, "nvidia_gpus", list)
    monkeypatch.setattr(gpus, "_amd_gpus", lambda: amd)
    monkeypatch.setattr(gpus, "torch_has_gpu_support", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.resolve_scale("auto") == scale


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
