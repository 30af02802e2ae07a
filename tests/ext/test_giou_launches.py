"""What a call of the fused operator gives a CUDA device to do, by PyTorch's own profiler: eagerly and in a graph."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

HERE = Path(__file__).resolve().parent

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

#: What a call may ask of CUDA; the profiler itself waits for the device at its end.
ASKED = {"cudaStreamIsCapturing", "cudaStreamGetCaptureInfo", "cudaDeviceGetAttribute", "cudaDeviceSynchronize"}


@pytest.fixture(autouse=True)
def cuda_library(ops):
    if "cuda" not in ops.IMPLEMENTATION.devices:
        pytest.skip(f"the library has no CUDA kernels: {ops.IMPLEMENTATION.reason}")


def traced(call: Callable[[], object]) -> tuple[list[str], set[str]]:
    """What runs on the device, in its order, and which functions of CUDA are called."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as trace:
        call()
    events = trace.events()
    assert events is not None
    on_device = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    called = {event.name for event in events if event.name.startswith("cuda")}
    return [event.name for event in sorted(on_device, key=lambda event: event.time_range.start)], called


@pytest.fixture(params=[torch.uint8, torch.float32], ids=["uint8", "float32"])
def step(request, ops, make_boxes):
    """Forward and backward, once run: what a first call loads and allocates is there."""
    predictions, targets = (boxes.cuda() for boxes in make_boxes(64, 256, dtypes=(torch.float32, request.param)))
    predictions.requires_grad_()
    grad = torch.ones((), device="cuda")

    def call() -> object:
        return torch.autograd.grad(ops.giou_loss(predictions, targets), predictions, grad)

    call()
    return call


def test_a_call_is_one_launch_each_way_and_nothing_else(step):
    kernels, called = traced(step)
    assert ["loss_forward_kernel" in kernels[0], "loss_backward_kernel" in kernels[1]] == [True, True]
    assert len(kernels) == 2  # no memset, no copy
    assert {name for name in called if not name.startswith("cudaLaunchKernel")} <= ASKED


def test_so_it_is_in_a_graph(step):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            step()
    kernels, called = traced(graph.replay)
    assert ["loss_forward_kernel" in kernel for kernel in kernels] == [True, False] * 3
    assert ["loss_backward_kernel" in kernel for kernel in kernels] == [False, True] * 3
    assert called - ASKED == {"cudaGraphLaunch"}


MANY_GRAPHS = """
import sys
sys.path[:0] = sys.argv[1:]
import torch
from steptrace_giou import ops
from test_giou_launches import traced
predictions, targets = torch.zeros(8, 4, device="cuda"), torch.zeros(8, 4, device="cuda")
assert ops.giou_loss(predictions, targets) is not None
graphs = [torch.cuda.CUDAGraph() for _ in range(257)]
for graph in graphs:
    with torch.cuda.graph(graph):
        ops.giou_loss(predictions, targets)
print(*(len(traced(graphs[number].replay)[0]) for number in (0, 254, 255, 256)))
"""


def test_once_no_workspace_is_left_each_graph_zeroes_its_own(ops):
    python_path = Path(ops.__file__).parents[1]
    command = [sys.executable, "-c", MANY_GRAPHS, str(python_path), str(HERE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "1", "2", "2"]
