import json
from pathlib import Path

import pytest

from builders import TraceBuilder
from steptrace.errors import RecordError
from steptrace.evidence import collect, machine_name

ENVIRONMENT = {"gpu": "NVIDIA H200", "cpu": "a cpu", "torch": "2.11.0"}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A working directory after a study of one good variant and one that failed."""
    results = tmp_path / "results" / "study"
    (results / "good" / "run0").mkdir(parents=True)
    (results / "bad" / "run0").mkdir(parents=True)
    comparison = {
        "study": "study",
        "scale": "gpu",
        "environment": ENVIRONMENT,
        "variants": [{"name": "good"}, {"name": "bad"}],
    }
    (results / "comparison.json").write_text(json.dumps(comparison))
    (results / "good" / "run0" / "run.json").write_text("{}")
    (results / "good" / "run0" / "summary.json").write_text("{}")
    trace = TraceBuilder()
    trace.step(0, 0, 100)
    trace.gpu("gemm", 5, 10, None)
    trace.write(results / "good" / "run0" / "trace.json.gz")
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "study.html").write_text("<p>page</p>")
    return tmp_path


def test_the_small_results_stand_in_a_folder_named_by_the_gpu(work: Path) -> None:
    folder = collect(work, scale="gpu", out=work / "reference", command="make gpu-evidence")
    assert folder.name == "h200"
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()) == [
        "README.md",
        "environment.json",
        "study.html",
        "study/comparison.json",
        "study/good.summary.json",
        "traces/study.good.pt.trace.json.gz",
    ]
    readme = (folder / "README.md").read_text()
    assert "make gpu-evidence" in readme
    assert "2.11.0" in readme
    assert "study/bad: run0 did not end well" in readme
    assert collect(work, scale="gpu", out=work / "reference", command="again") == folder


def test_results_of_another_scale_are_none(work: Path) -> None:
    with pytest.raises(RecordError, match="no study was compared at scale cpu"):
        collect(work, scale="cpu", out=work / "reference", command="")


def test_too_much_is_refused_and_the_earlier_folder_kept(work: Path) -> None:
    folder = collect(work, scale="gpu", out=work / "reference", command="first")
    (work / "reports" / "study.html").write_bytes(b"x" * 5_000_001)
    with pytest.raises(RecordError, match=r"study\.html"):
        collect(work, scale="gpu", out=work / "reference", command="second")
    assert "first" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
        (None, "cpu"),
    ],
)
def test_machine_name(gpu: str | None, name: str) -> None:
    assert machine_name({"gpu": gpu}) == name
