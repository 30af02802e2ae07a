"""What a training holds, and by which modules."""

from types import SimpleNamespace

import torch
from torch import nn

from steptrace.engine.memory import held_bytes, modules_of, workspace_bytes


def test_what_is_held_counts_by_category() -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    assert held_bytes([model], [optimizer]) == {"parameters": 64, "gradients": 64, "optimizer_state": 0}
    assert workspace_bytes() == {}  # there are none on a CPU


def test_the_modules_are_those_with_a_trained_parameter_and_all_around_them() -> None:
    model, other = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(3, 4)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), SimpleNamespace()]
    assert {id(module) for module in modules_of(optimizers)} == {id(model), id(model[0])}
    assert id(other) not in {id(module) for module in modules_of(optimizers)}
