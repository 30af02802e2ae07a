"""What a program notes on its parameters stays there when a module moves."""

import torch
from torch import nn

from steptrace.predict import predict_syncs


def test_attributes_of_parameters_stay_when_a_module_moves() -> None:
    with predict_syncs():
        layer = nn.Linear(3, 3)
        layer.weight.no_weight_decay = True  # type: ignore[assignment]
        for moved in (layer.cuda(), layer.half(), layer.cpu()):
            assert moved.weight.no_weight_decay
        layer.weight.data = layer.weight.data.cuda()
        assert layer.weight.no_weight_decay
        assert layer.weight.device == torch.device("cuda", 0)
