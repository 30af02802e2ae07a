"""What a look at a training's memory tells, and that it never stops the training."""

from types import SimpleNamespace

import torch
from torch import nn

from steptrace.engine.device import MemoryLook, modules_of


def test_gradients_are_those_at_the_end_of_the_last_backward_pass() -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    look = MemoryLook([model], [optimizer])
    with look("optimizer"):
        assert look.record == {}
    with look("backward"):
        model(torch.ones(2, 3)).sum().backward()
    optimizer.zero_grad()
    look.note_held()
    look.note_workspaces()  # there are none on a CPU
    assert look.record == {
        "gradient_bytes": 64,
        "held": {"parameters": 64, "gradients": 0, "optimizer_state": 0},
    }


def test_what_cannot_be_counted_stops_no_backward_pass() -> None:
    look = MemoryLook([], [SimpleNamespace(param_groups=[{"params": ["none"]}])])
    passed = False
    with look("backward"):
        passed = True
    assert passed
    assert look.record == {}


def test_the_modules_are_those_with_a_trained_parameter_and_all_around_them() -> None:
    model, other = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(3, 4)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), SimpleNamespace()]
    assert {id(module) for module in modules_of(optimizers)} == {id(model), id(model[0])}
    assert id(other) not in {id(module) for module in modules_of(optimizers)}
