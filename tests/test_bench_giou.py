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

pytestmark = pytest.mark.usefixtures("forked_programs")

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "bench"

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

AGAINST_THE_TWIN = """
import sys
sys.path[:0] = sys.argv[1:]
import torch
from steptrace.workloads import giou_triton
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
        for loss_of, given in ((giou_triton.giou_loss, predictions), (reference.giou_loss, predictions.float())):
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
from steptrace.workloads import giou_triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
boxes = {"predictions": "*bf16", "targets": "*u8", "boxes": "i32"}
for kernel, more in (
    (giou_triton._forward, {"sums": "*fp32", "counts": "*i32", "ticket": "*i32", "loss": "*fp32", "valid": "*i64"}),
    (giou_triton._backward, {"grad": "*fp32", "valid": "*i64", "gradient": "*bf16"}),
):
    compiled = triton.compile(ASTSource(kernel, {**boxes, **more}, {}), target=GPUTarget("cuda", 90, 32))
    assert compiled.asm["cubin"]
    assert ".local" not in compiled.asm["ptx"], "registers were spilled"
"""


# The benchmark with more implementations, and a cache of the size that is asked for.
WITH_MORE = """
import sys
sys.path.insert(0, sys.argv.pop(1))
cache = int(sys.argv.pop(1))
import giou
from giou_parts import losses
calls = 0
def later(batch):
    global calls
    calls += 1
    if calls > 5:
        raise ValueError("out of order\\nand more")
    return losses.MADE["fused"](batch)
def first(batch):
    raise RuntimeError("no such kernel")
more = {"later": later, "first": first, "wrong": lambda b: losses.MADE["fused"](b) + 1}
def made(names, device):
    losses.MADE = losses.implementations(["fused"], device)
    return losses.MADE | {name: more[name] for name in names if name != "fused"}
giou.implementations = made
if cache:
    giou.cache_bytes = lambda device: cache
giou.main()
"""
QUICK = ("--device", "cpu", "--repeats", "3", "--sample-ms", "0.1")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build the extension with")


def started(*command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    env = {key: value for key, value in os.environ.items() if key != "STEPTRACE_GIOU_LIBRARY"}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=env | environment, check=False
    )


def run(*command: str, **environment: str) -> None:
    result = started(*command, **environment)
    assert result.returncode == 0, result.stdout + result.stderr


@needs_compiler
def test_every_figure_of_a_small_run_is_there(tmp_path: Path) -> None:
    how = (*QUICK, "--cold", "--only", "padding", "fused")
    run(str(BENCH / "giou.py"), *how, "--sizes", "2x8", "--json", str(tmp_path / "giou.json"))
    document = json.loads((tmp_path / "giou.json").read_text())
    assert document["copy_gb_s"] > 0
    assert (document["complete"], document["failures"]) == (True, [])
    assert [(row["implementation"], row["mode"]) for row in document["rows"]] == [
        *(("padding", "forward"), ("fused", "forward")),
        *(("padding", "forward+backward"), ("fused", "forward+backward")),
    ]
    for row in document["rows"]:
        assert row["us_fastest"] <= row["us_low"] <= row["us"] <= row["us_high"]
        assert row["graph_us"] is None
        assert row["batches"] > 1
        assert row["cold"] is False  # the most batches that there are make less than a cache


@needs_compiler
def test_what_fails_is_named_and_the_others_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "giou.json"
    done = started(
        *("-c", WITH_MORE, str(BENCH), "0", *QUICK, "--sizes", "2x8", "--json", str(file)),
        *("--only", "fused", "later", "first", "wrong"),
    )
    assert done.returncode == 1
    document = json.loads(file.read_text())
    assert document["complete"]
    assert [row["implementation"] for row in document["rows"]] == ["fused", "fused"]
    failures = [(failure["implementation"], failure["mode"], failure["message"]) for failure in document["failures"]]
    assert failures[0] == ("first", None, "RuntimeError: no such kernel")
    assert failures[1][:2] == ("wrong", None)
    assert failures[1][2].startswith("not the same loss as fused")
    later = "ValueError: out of order"
    assert failures[2:] == [("later", "forward", later), ("later", "forward+backward", later)]
    assert f"2 8 forward later {later}" in done.stderr


@needs_compiler
def test_cold_means_that_more_than_the_cache_moves_between_two_uses_of_a_batch(tmp_path: Path) -> None:
    file = tmp_path / "giou.json"
    how = (*QUICK, "--cold", "--sizes", "2x8", "--json", str(file), "--only", "fused")
    run("-c", WITH_MORE, str(BENCH), "1000", *how)
    for row in json.loads(file.read_text())["rows"]:
        assert row["cold"]
        assert (row["batches"] - 1) * row["bytes_moved"] > 2000


def test_a_graph_goes_through_all_batches_or_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from giou_parts.timing import graph_size

    assert [graph_size(operators, 1) for operators in (None, 8, 500, 5000)] == [20, 20, 4, 1]
    assert [graph_size(operators, 185) for operators in (None, 8, 45)] == [185, 185, 185]
    assert graph_size(1500, 185) == "not measured: 185 batches of 1500 operators are too many for one graph"


@needs_triton
def test_the_triton_loss_is_the_twins() -> None:
    run(
        "-c", AGAINST_THE_TWIN, str(BENCH), str(ROOT / "ext/giou/python"), TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES=""
    )


@needs_triton
def test_the_triton_loss_compiles_without_spills_where_there_is_no_gpu(tmp_path: Path) -> None:
    run("-c", FOR_HOPPER, str(BENCH), TRITON_CACHE_DIR=str(tmp_path))
