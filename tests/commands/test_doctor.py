"""`steptrace doctor`: what it says of machines that lack something."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from figures import figures_in
from steptrace.cli import main
from steptrace.commands import doctor


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def _doctor(capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, dict[str, Any]]:
    assert main(["doctor", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["usable"] == (code == 0)
    return {check["name"]: check for check in document["checks"]}


def test_a_machine_without_a_gpu_can_run_studies(capsys: pytest.CaptureFixture[str]) -> None:
    checks = _doctor(capsys)
    assert checks["GPU"]["state"] == "missing"
    assert "CUDA_VISIBLE_DEVICES" in checks["GPU"]["result"]
    assert "docs/gpu-node.md" in checks["GPU"]["next_step"]
    assert checks["PyTorch"]["state"] == "ok"
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["masked_loss", "5", "yes"] for line in lines)
    assert any(line.startswith("missing  GPU") for line in lines)
    assert sum("next:" in line for line in lines) == sum(check["next_step"] is not None for check in checks.values())


def test_a_folder_without_a_workflow_needs_one_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = "snakemake --cores all --config 'studies=[STUDY]'"
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"run one: steptrace init DIR && cd DIR && {run}"
    (tmp_path / "Snakefile").touch()
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"run one: {run}"


@pytest.mark.parametrize(
    ("flags", "state", "result"),
    [
        ("flags : fpu sse avx512_bf16 amx_bf16", "ok", "bfloat16 units (amx_bf16, avx512_bf16)"),
        ("Features : fp asimd bf16", "ok", "bfloat16 units (bf16)"),
        ("flags : fpu sse avx512f", "note", "no bfloat16 units (neither amx_bf16 nor avx512_bf16)"),
    ],
)
def test_what_the_cpu_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, state: str, result: str
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    monkeypatch.setattr(doctor, "_CPUINFO", tmp_path / "cpuinfo")
    (check,) = doctor._processor()
    assert (check.state, check.result) == (state, result)
    assert (check.next_step is None) == (state == "ok")


def test_a_gpu_that_pytorch_was_not_built_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "usable_gpus", lambda: 2)
    monkeypatch.setattr(doctor, "torch_has_gpu_support", lambda: False)
    gpu = _doctor(capsys)["GPU"]
    assert gpu["state"] == "missing"
    assert figures_in(gpu["result"]) == [2]
    assert "PyTorch" in gpu["result"]


def test_a_list_of_gpus_on_a_machine_without_any(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steptrace.machine.gpus_here", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    result = _doctor(capsys)["GPU"]["result"]
    assert "CUDA_VISIBLE_DEVICES" in result
    assert "'0,1'" in result


@pytest.mark.parametrize(
    ("output", "gpu", "profiler"),
    [
        ({"name": "A GPU", "kernels": 1, "error": None}, "ok", "ok"),
        ({"name": "A GPU", "kernels": 0, "error": None}, "ok", "missing"),
        ({"name": None, "kernels": None, "error": "no driver"}, "missing", None),
    ],
)
def test_what_a_product_on_the_gpu_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, output: Any, gpu: str, profiler: str | None
) -> None:
    monkeypatch.setattr(doctor, "usable_gpus", lambda: 1)
    monkeypatch.setattr(doctor, "torch_has_gpu_support", lambda: True)
    done = subprocess.CompletedProcess([], 0, stdout=f"a warning\n{json.dumps(output)}\n")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: done)
    checks = _doctor(capsys)
    assert checks["GPU"]["state"] == gpu
    assert checks.get("Profiler", {}).get("state") == profiler


@pytest.mark.usefixtures("forked_programs")
def test_the_check_of_the_gpu_says_why_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    command = [sys.executable, "-m", "steptrace.commands.doctor"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    checks = json.loads(done.stdout)
    assert checks["kernels"] is None
    assert checks["error"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_profiler_sees_the_kernel() -> None:
    checks = doctor.use_gpu()
    assert checks["error"] is None
    assert checks["name"]
    assert checks["kernels"] >= 1


def test_no_compiler(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    checks = _doctor(capsys)
    assert checks["C++ compiler"]["result"] == "no no-such-compiler"


def test_no_pytorch_at_all(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert _doctor(capsys, code=1)["PyTorch"]["state"] == "broken"


@pytest.mark.parametrize(
    ("version", "state"), [("2.11.0", "ok"), ("2.14.1+cpu", "ok"), ("2.10.2", "note"), ("2.15.0+cu130", "note")]
)
def test_a_pytorch_that_steptrace_was_not_tried_with(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, version: str, state: str
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    check = _doctor(capsys)["PyTorch"]
    assert check["state"] == state
    assert check["result"].startswith(version)
    assert (check["next_step"] is None) == (state == "ok")
