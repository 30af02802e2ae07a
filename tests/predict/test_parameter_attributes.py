"""What a program notes on its parameters stays there when a module moves."""

import copy
import pickle

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


def test_a_parameter_is_of_its_class_and_so_are_its_copies() -> None:
    with predict_syncs():
        layer = nn.Linear(4, 4).to("cuda")
        layer.weight.note = 3  # type: ignore[assignment]
        layer.weight.grad = torch.ones_like(layer.weight)
        made = type(layer.weight)(torch.ones(2, device="cuda"), requires_grad=False)
        copied = copy.deepcopy(layer.weight)
        loaded = pickle.loads(pickle.dumps(layer.weight))
        for parameter in (layer.weight, layer.bias, made, copied, loaded, layer.half().weight):
            assert parameter.__class__ == nn.Parameter
            assert type(parameter).__name__ == "Parameter"
            assert parameter.device.type == "cuda"
        assert (made.requires_grad, loaded.note) == (False, 3)
        assert (copied.grad, hasattr(copied, "note")) == (None, False)  # as on CUDA
        assert layer.weight.data.__class__ == (layer.weight + 1).__class__ == torch.Tensor
        assert type(layer.weight)(torch.ones(2)).device.type == type(made.data)([1.0]).device.type == "cpu"
        assert type(layer.cpu().weight) is nn.Parameter
