"""What a program notes on its parameters stays there when a module moves."""

import copy
import pickle
from typing import Any

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


class Packed(nn.Parameter):
    """A parameter of a library's own class, as those of bitsandbytes: it keeps what its bits mean, and moves itself."""

    scale: float | None

    def __new__(cls, data: torch.Tensor, requires_grad: Any = None, scale: float | None = None) -> "Packed":
        packed: Packed = torch.Tensor._make_subclass(cls, data, bool(requires_grad))
        packed.scale = scale
        return packed

    def to(self, *args: Any, **named: Any) -> "Packed":  # type: ignore[override]
        return Packed(super().to(*args, **named), requires_grad=self.requires_grad, **self.__dict__)


def test_a_class_of_parameters_is_made_again_of_all_its_attributes() -> None:
    """As accelerate and peft do: `type(p)(values, requires_grad=..., **p.__dict__)`."""
    with predict_syncs():
        layer = nn.Linear(2, 2, device="cuda")
        assert vars(layer.weight) == {}
        made = type(layer.weight)(layer.weight.data, requires_grad=False, **layer.weight.__dict__)
        assert made.device.type == "cuda"
        layer.weight = Packed(torch.ones(2, 2), scale=0.5)
        assert vars(layer.weight.to("cuda")) == {"scale": 0.5}
        layer.to("cuda")  # PyTorch keeps the class of a parameter whose module moves
        assert (type(layer.weight).__name__, layer.weight.device.type) == ("Packed", "cuda")
        assert type(layer.weight)(layer.weight.data, **vars(layer.weight)).scale == 0.5


def test_the_attributes_of_a_tensor_are_a_dictionary_of_the_program_s() -> None:
    with predict_syncs():
        tensor = torch.ones(2, device="cuda")
        attributes = tensor.__dict__
        tensor.first = 1  # type: ignore[attr-defined]
        attributes["second"] = 2
        attributes |= {"third": 3}
        expected = {"first": 1, "second": 2, "third": 3}
        for same in (attributes, vars(tensor), {**attributes}, dict(attributes), copy.deepcopy(attributes)):
            assert same == expected
        assert isinstance(attributes, dict)
        assert attributes | {"first": 0} == {**expected, "first": 0}
        assert attributes.pop("first") == 1
        del attributes["third"]
        assert not hasattr(tensor, "first")
        attributes.clear()
        assert (vars(tensor), tensor.tolist()) == ({}, [1.0, 1.0])
