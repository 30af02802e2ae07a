"""Lists and mappings of a configuration reach a class as Python's own, not as OmegaConf's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from steptrace.equivalence.reference import cases_of, compare_on
from steptrace.equivalence.verdict import verdict_on
from steptrace.lab.setup import training

MakeConfig = Callable[..., DictConfig]

CLASSES = """
import torch
from torch import nn


def check(*arguments):
    for value in arguments:
        assert type(value) in (list, dict), type(value)
        for part in value if isinstance(value, list) else value.values():
            assert type(part) in (list, dict, int), type(part)


class Net(nn.Module):
    def __init__(self, sizes, named):
        super().__init__()
        check(sizes, named)
        self.layer = nn.Linear(*sizes[0])

    def forward(self, inputs):
        return self.layer(inputs)


class Loss(nn.Module):
    def __init__(self, weights):
        super().__init__()
        check(weights)

    def forward(self, output, target):
        return (output - target).square().mean()


class Steps(torch.optim.SGD):
    def __init__(self, parameters, factors):
        check(factors)
        super().__init__(parameters, lr=0.1)


class Data:
    def __init__(self, shape, seed=0):
        check(shape)
        self.shape = shape

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full(self.shape, index / 8), torch.ones(2)
"""

CHANGES: dict[str, Any] = {
    "model": {"_target_": "checked_arguments.Net", "sizes": [[3, 2]], "named": {"a": [1], "b": {"c": 2}}},
    "loss": {"_target_": "checked_arguments.Loss", "weights": [1, 2]},
    "data.dataset": {"_target_": "checked_arguments.Data", "shape": [3], "seed": 0},
    "optimizer": {"_target_": "checked_arguments.Steps", "_partial_": True, "factors": [1, 2]},
}


@pytest.fixture(autouse=True)
def classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checked_arguments.py").write_text(CLASSES)
    monkeypatch.syspath_prepend(tmp_path)


def test_training(make_config: MakeConfig) -> None:
    with training(make_config(CHANGES), 7) as parts:
        assert next(parts.batches)[0].shape == (2, 3)


def test_equivalence_with_arguments_of_its_own(make_config: MakeConfig) -> None:
    config = make_config(CHANGES | {"equivalence.model": {"named": {"d": [4]}}})
    cases = [compare_on(config, config, *case) for case in cases_of(config)]
    assert verdict_on(cases).status == "same"
