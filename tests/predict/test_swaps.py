"""Tensors that change sides or content keep their class, their gradient, and what the program noted on them."""

import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from steptrace.predict import predict_syncs


class Labelled(torch.Tensor):
    pass


class Scaled(nn.Parameter):
    inited = False

    def __init__(self, *_: object, **__: object) -> None:
        self.inited = True


@pytest.mark.parametrize("make", [lambda values: values.as_subclass(Labelled), Scaled, nn.Parameter])
def test_a_tensor_keeps_its_class_and_attributes_as_its_data_change_sides(make):
    with predict_syncs() as syncs:
        tensor = make(torch.ones(3))
        kind = type(tensor)
        tensor.note = 5
        seen = weakref.ref(tensor)
        for side in ("cuda", "cpu", "cuda"):
            tensor.data = tensor.data.to(side)
            assert isinstance(tensor, kind)
            assert tensor.__class__ == kind
            assert (tensor.device.type, tensor.note, seen() is tensor) == (side, 5, True)
        assert syncs.total == 3
        assert (tensor + 1).tolist() == [2.0] * 3


def test_a_gradient_changes_sides_with_its_parameter():
    with predict_syncs():
        layer = nn.Linear(2, 2).cuda()
        layer(torch.ones(1, 2, device="cuda")).sum().backward()
        layer.weight.data = layer.weight.data.cpu()
        layer.weight.grad.data = layer.weight.grad.data.cpu()
        assert (layer.weight.grad.device.type, layer.weight.grad.tolist()) == ("cpu", [[1.0, 1], [1, 1]])


def moved_as_module(parameter):
    module = nn.Module()
    module.weight = parameter
    module.cuda()


def moved_by_data(parameter):
    parameter.data = parameter.data.cuda()


@pytest.mark.parametrize("move", [moved_as_module, moved_by_data])
@pytest.mark.parametrize("make", [nn.Parameter, Scaled])
def test_hooks_of_a_gradient_stay_as_its_parameter_moves(make, move):
    called = []
    with predict_syncs():
        parameter = make(torch.ones(2))
        handles = [
            parameter.register_hook(lambda _: called.append("gradient")),
            parameter.register_post_accumulate_grad_hook(lambda one: called.append(one is parameter)),
        ]
        move(parameter)
        parameter.sum().backward()
        assert called == ["gradient", True]
        for handle in handles:
            handle.remove()
        parameter.sum().backward()
        assert called == ["gradient", True]


def test_data_that_a_tensor_refuses_change_nothing():
    with predict_syncs():
        tensor = torch.zeros(4, device="cuda", requires_grad=True)
        with pytest.raises(RuntimeError, match="floating point"):
            tensor.data = torch.ones(3, device="cuda", dtype=torch.int64)
        assert tensor.tolist() == [0.0] * 4


def test_parameters_of_a_program_s_class_stay_so_as_their_module_moves():
    with predict_syncs():
        module = nn.Module()
        module.weight = Scaled(torch.ones(2))
        module.made_there = Scaled(torch.ones(2, device="cuda"), requires_grad=False)
        assert (module.made_there.inited, module.made_there.requires_grad) == (True, False)
        for moved in (module.cuda(), module.half(), module.cpu(), module.double()):
            for tensor in moved.parameters():
                assert isinstance(tensor, Scaled)
                assert tensor.inited


def test_swapped_tensors_swap_their_classes():
    with predict_syncs():
        first, second = torch.zeros(2).cuda().as_subclass(Labelled), torch.ones(3).cuda()
        torch.utils.swap_tensors(first, second)
        assert (first.__class__ == torch.Tensor, first.tolist()) == (True, [1.0] * 3)
        assert (type(second), second.tolist()) == (Labelled, [0.0] * 2)


def _trained() -> list[object]:
    layer = nn.Linear(2, 1, device="cuda")
    with torch.inference_mode():
        vector_to_parameters(torch.zeros_like(parameters_to_vector(layer.parameters())), layer.parameters())
    return [layer.weight.tolist(), layer.weight.requires_grad, layer.weight.is_inference()]


def test_parameters_take_a_vector_s_values_in_inference_mode():
    with predict_syncs():
        assert _trained() == [[[0.0, 0.0]], True, True]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_module_moves_and_is_trained():
    with predict_syncs():
        scripted = torch.jit.script(nn.Linear(2, 1)).cuda()
        scripted(torch.ones(1, 2, device="cuda")).sum().backward()
        assert scripted.weight.grad.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("wrong", [3, None, [1.0]])
@pytest.mark.parametrize("name", ["data", "grad"])
def test_a_value_that_is_no_tensor_is_refused_as_by_pytorch(name, wrong):
    def refusal(tensor):
        try:
            setattr(tensor, name, wrong)
        except Exception as error:
            return type(error), str(error)
        return None

    expected = refusal(torch.ones(3))
    with predict_syncs():
        assert refusal(torch.ones(3, device="cuda")) == expected
    assert (expected is None) is (name == "grad" and wrong is None)
