"""Kernels that a program compiles from CUDA C++, and those in Triton: their launches have a band by their bytes."""

import pytest
import torch

from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.estimate.drawn import FollowedStep
from steptrace.estimate.gpus import gpu_named
from steptrace.estimate.step import estimate_step
from steptrace.predict import predict_syncs

SOURCE = """
extern "C" __global__ void other(float* x) {}
// __global__ void add(wrong)
extern "C" __global__
void add(const float* __restrict__ x, /* in */ const float *y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + y[i];
}
"""
N = 2**20


def _launched(**options):
    with predict_syncs() as syncs:
        add = torch.cuda._compile_kernel(SOURCE, "add")
        x, y = torch.ones(N, device="cuda"), torch.ones(N, device="cuda")
        out = torch.zeros(N, device="cuda")
        syncs.reset()
        add(grid=(N // 256, 1, 1), block=(256, 1, 1), args=[x, y, out, N], **options)
        return syncs, out.cpu()


def test_a_launch_is_a_remark_with_the_tensors_that_it_reads_and_writes():
    syncs, _ = _launched()
    (remark,) = [one for one in syncs.unknown if one.op == "nvrtc::add"]
    assert remark.line is not None
    call = next(call for call in syncs.operators if call.name == "kernel.nvrtc::add")
    assert (len(call.inputs), len(call.outputs), call.calls) == (2, 1, 1)


def test_what_pytorch_refuses_is_refused():
    with predict_syncs():
        add = torch.cuda._compile_kernel(SOURCE, "add")
        with pytest.raises(ValueError, match="must be CUDA tensors"):
            add(args=[torch.ones(2)])
        with pytest.raises(TypeError):
            add(args=["x"])
        with pytest.raises(RuntimeError, match="shared memory"):
            add(shared_mem=2**16)
        add.set_shared_memory_config(2**16)
        add(shared_mem=2**16)
        with pytest.raises(ValueError, match="empty"):
            torch.cuda._compile_kernel(" ", "add")


@pytest.mark.parametrize("gpu", ["H100", "RTX-4090"])
def test_its_band_holds_the_whole_bandwidth_and_a_tenth_of_it_and_counts_as_not_tested(gpu):
    tensor = TensorSpec(shape=(2**28,), strides=(1,), dtype="float32")
    call = OperatorCalls(
        name="kernel.triton::add", inputs=(tensor, tensor), outputs=(tensor,), is_view=False, flop=0, calls=1,
        phase="forward", file="train.py", line=3,
    )  # fmt: skip
    found = estimate_step(FollowedStep([call]), gpu_named(gpu))
    ideal_ms = 1e3 * 3 * 2**30 / gpu_named(gpu).bandwidth
    low, high = found.gpu_ms
    assert low < 1.3 * ideal_ms
    assert high > 10 * ideal_ms
    assert (found.covered_pct, found.tested_pct) == (100, 0)
    assert [(one.name, one.line) for one in found.assumed] == [("kernel.triton::add", 3)]
