"""bench/giou.py: its figures on a CPU, and its Triton loss, which no CPU run calls."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "bench"

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

AGAINST_THE_TWIN = """
import sys
sys.path[:0] = sys.argv[1:]
import torch
from giou_parts import triton_loss
from steptrace_giou import reference
torch.manual_seed(0)
for boxes in (1, 513, 3000):
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.bfloat16, 2e-2)):
        low = torch.randint(0, 255, (boxes, 2))
        targets = torch.cat([low, (low + torch.randint(1, 256, (boxes, 2))).clamp(max=255)], -1)
        targets = (targets * (torch.rand(boxes) < 0.5)[:, None]).to(torch.uint8)
        predictions = (64 * torch.randn(boxes, 4) + targets).to(dtype)
        predictions[: boxes // 5] = targets[: boxes // 5].to(dtype)  # ties of max and min
        losses, gradients = [], []
        for loss_of, given in ((triton_loss.giou_loss, predictions), (reference.giou_loss, predictions.float())):
            given = given.detach().requires_grad_()
            losses.append(loss_of(given, targets))
            gradients.append(torch.autograd.grad(losses[-1], given)[0].float())
        torch.testing.assert_close(*losses, rtol=0, atol=2e-6)
        torch.testing.assert_close(*gradients, rtol=0, atol=tolerance * float(gradients[1].abs().max()))
"""

FOR_HOPPER = """
import sys
sys.path[:0] = sys.argv[1:]
import triton
from giou_parts import triton_loss
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
boxes = {"predictions": "*bf16", "targets": "*u8", "boxes": "i32"}
for kernel, more in (
    (triton_loss._forward, {"sums": "*fp32", "counts": "*i32", "ticket": "*i32", "loss": "*fp32", "valid": "*i64"}),
    (triton_loss._backward, {"grad": "*fp32", "valid": "*i64", "gradient": "*bf16"}),
):
    compiled = triton.compile(ASTSource(kernel, {**boxes, **more}, {}), target=GPUTarget("cuda", 90, 32))
    assert compiled.asm["cubin"]
    assert ".local" not in compiled.asm["ptx"], "registers were spilled"
"""


def run(*command: str, **environment: str) -> None:
    env = {key: value for key, value in os.environ.items() if key != "STEPTRACE_GIOU_LIBRARY"}
    result = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=env | environment, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build the extension with")
def test_every_figure_of_a_small_run_is_there(tmp_path: Path) -> None:
    how = ("--device", "cpu", "--repeats", "2", "--sample-ms", "0.1", "--cold", "--only", "padding", "fused")
    run(str(BENCH / "giou.py"), *how, "--sizes", "2x8", "--json", str(tmp_path / "giou.json"))
    found = json.loads((tmp_path / "giou.json").read_text())
    assert found["copy_gb_s"] > 0
    assert [(row["implementation"], row["mode"]) for row in found["rows"]] == [
        *(("padding", "forward"), ("fused", "forward")),
        *(("padding", "forward+backward"), ("fused", "forward+backward")),
    ]
    for row in found["rows"]:
        assert row["us_fastest"] <= row["us_low"] <= row["us"] <= row["us_high"]
        assert row["graph_us"] is None
        assert row["batches"] > 1


@needs_triton
def test_the_triton_loss_is_the_twins() -> None:
    run(
        "-c", AGAINST_THE_TWIN, str(BENCH), str(ROOT / "ext/giou/python"), TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES=""
    )


@needs_triton
def test_the_triton_loss_compiles_without_spills_where_there_is_no_gpu(tmp_path: Path) -> None:
    run("-c", FOR_HOPPER, str(BENCH), TRITON_CACHE_DIR=str(tmp_path))
