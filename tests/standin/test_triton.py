"""Real Triton kernels are launched in a prediction, under the CUDA build of PyTorch, and on no GPU."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.standin

PROGRAM = """
import torch, triton, triton.language as tl
from torch.library import triton_op, wrap_triton

@triton.jit
def put(out, at, value, inside):
    tl.store(out + at, value, mask=inside)

@triton.autotune(configs=[triton.Config({"B": 64}), triton.Config({"B": 128}, num_warps=8)], key=["n"])
@triton.heuristics({"EVEN": lambda given: given["n"] % given["B"] == 0})
@triton.jit
def doubled(x, y, index, n, B: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    put(y, at, 2 * tl.load(x + tl.load(index + at, mask=at < n), mask=at < n), at < n)

def launch(kernel, x):
    y, index, n = torch.empty_like(x), torch.arange(x.numel(), device=x.device), x.numel()
    kernel[lambda given: (triton.cdiv(n, given["B"]),)](x, y, index, n)
    assert index[1].item() == 1
    return y

@triton_op("steptrace_standin::doubled", mutates_args={})
def operator(x: torch.Tensor) -> torch.Tensor:
    return launch(wrap_triton(doubled), x)

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return launch(doubled, x)

    @staticmethod
    def backward(ctx, gradient):
        return launch(doubled, gradient.contiguous())

operator.register_autograd(lambda ctx, gradient: gradient * 2)
assert triton.runtime.driver.active.get_current_target().backend == "cuda"
assert triton.runtime.driver.active.utils.get_device_properties(0)["multiprocessor_count"] > 0
weight = torch.nn.Parameter(torch.randn(64, 64, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(20):
    (Double.apply(weight) + operator(weight)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_launches_are_remarks_in_each_phase(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "steptrace", "predict", "--json", "--", sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    prediction = json.loads(done.stdout)
    launches = [place for place in prediction["unknown"] if place["op"] == "triton::doubled"]
    assert sorted((place["phase"], place["count"]) for place in launches) == [
        ("backward", 1),
        ("forward", 2),
    ]
    assert [place["op"] for place in prediction["unknown"] if place not in launches] == []
    assert {site["op"] for site in prediction["sites"]} == {"aten::_local_scalar_dense"}
    assert sum(site["count"] for site in prediction["sites"]) == 3
