"""The estimate of a step that was followed on the virtual device, from Python."""

import subprocess
import sys

import pytest

PROGRAM = """
import torch
from steptrace.predict import predict_syncs

with predict_syncs() as syncs:
    model = torch.nn.Linear(4096, 4096, device="cuda")
    model(torch.ones(8192, 4096, device="cuda")).sum().backward()
    print(model.weight.grad.sum().item() * 0)
    estimate = syncs.estimate("H100")
    torch.compile(model)(torch.ones(8, 4096, device="cuda"))
compiled = syncs.estimate("H100")
ideal_ms = 1e3 * 2 * 2 * 8192 * 4096**2 / (0.75 * 66.9e12)
assert estimate.step_ms[0] < ideal_ms < estimate.step_ms[1], estimate
assert (estimate.limited_by, estimate.syncs, estimate.fits) == ("arithmetic", 1, True), estimate
assert estimate.peak_memory_bytes > 4 * (8192 * 4096 * 2 + 4096**2)
with predict_syncs() as syncs:
    rows = torch.nn.Embedding(9, 4, sparse=True, device="cuda")
    rows(torch.tensor([1, 2], device="cuda")).square().sum().backward()
    taken = next(one for one in syncs.operators if one.name == "aten.clone.default")
assert [(one.shape, one.strides) for one in taken.inputs] == [((9, 4), ()), ((1, 2), (2, 1)), ((2, 4), (4, 1))]
assert compiled.step_ms is None
assert compiled.uncompiled_ms[0] >= estimate.step_ms[0], compiled
"""


@pytest.mark.usefixtures("forked_programs")
def test_a_followed_step_is_estimated():
    # In a process of its own: the virtual device stays where it was set up.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
