"""Subclasses of Tensor that a program makes by `as_subclass`, as fastai, MONAI and torchvision do.

Whatever is asked of one, the answers on the virtual device are those of the CPU, but for the device's name.
"""

# ruff: noqa: E721 - how programs compare

import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from steptrace.predict import predict_syncs


class Plain(torch.Tensor):
    """As `Tensor.__torch_function__` makes it: results are of the class."""


class Labelled(torch.Tensor):
    """A class that says itself what functions do with it, and keeps an attribute."""

    label: str
    asked: list[str] = []  # noqa: RUF012 - of the class

    def __new__(cls, data: Any, label: str) -> "Labelled":
        tensor = torch.as_tensor(data).as_subclass(cls)
        tensor.label = label
        return tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(func.__name__)
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Labelled) and isinstance(args[0], Labelled):
            result.label = args[0].label
        return result


def _of(result: Any) -> Any:
    return type(result) == Labelled, getattr(result, "label", None)


def _linear(x: Any) -> Any:
    layer = nn.Linear(3, 2, bias=False).to(x.device)
    out = layer(x)
    out.sum().backward()
    return type(out) == Labelled, layer.weight.grad.tolist(), type(layer.weight.grad) == torch.Tensor


def _saved(x: Any) -> Any:
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    return _of(torch.load(file, weights_only=False)["x"])


def _asked_by_name(x: Any) -> Any:
    Labelled.asked.clear()
    nn.functional.relu(x)
    nn.functional.gelu(x)
    torch.stack([x, x])
    return list(Labelled.asked)


def _without_function(x: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return type(x + 1) == torch.Tensor


def _in_place(x: Any) -> Any:
    changed = x.clone()
    changed += 1
    return _of(changed), changed.tolist()


def _attributes_of_another(x: Any) -> Any:
    """As MONAI and fastai keep what they know of an image."""
    first, second = x[0].clone(), x[1].clone()
    second.__dict__.update(first.__dict__)
    values = second.tolist()
    second.__dict__ = {"label": "new"}
    return values, second.tolist(), _of(second)


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: _of(x + 1),
    "a row": lambda x: _of(x[0]),
    "a view": lambda x: _of(x.T),
    "back": lambda x: type(x.as_subclass(torch.Tensor)) == torch.Tensor,
    "as a function": lambda x: (
        type(torch.Tensor.as_subclass(x, Plain)) == Plain,
        torch.Tensor.as_subclass(x, Plain).tolist(),
    ),
    "a copy": lambda x: _of(x.cpu()),
    "another": lambda x: _of(type(x)(x, "b")),
    "another on the host": lambda x: (_of(type(x)(torch.zeros(2), "c")), type(x)(torch.zeros(2), "c").device.type),
    "made as one": lambda x: type(torch.Tensor._make_subclass(Plain, x.as_subclass(torch.Tensor))) == Plain,
    "a weight": lambda x: isinstance(nn.Parameter(x), Labelled),
    "its class": lambda x: (pickle.loads(pickle.dumps(type(x))) is Labelled, {Labelled: 1}[type(x)], type(x).__name__),
    "values": lambda x: (x.sum().item(), x.tolist(), bool((x > 0).all())),
    "layer": _linear,
    "saved": _saved,
    "asked": _asked_by_name,
    "switched off": _without_function,
    "in place": _in_place,
    "attributes of another": _attributes_of_another,
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_class_of_the_program_s_answers_on_the_device_as_on_the_host(name):
    torch.manual_seed(0)
    ask = QUESTIONS[name]
    expected = ask(Labelled([[1.0, 2, 3], [4, 5, 6]], "a"))
    torch.manual_seed(0)
    with predict_syncs():
        moved = Labelled([[1.0, 2, 3], [4, 5, 6]], "a").to("cuda")
        assert (moved.device.type, moved.is_cuda) == ("cuda", True)
        assert ask(moved) == expected


def test_a_tensor_keeps_its_values_if_its_attributes_are_replaced():
    with predict_syncs():
        labelled = Labelled([1.0, 2], "a").to("cuda")
        plain = torch.ones(2, device="cuda")
        plain.__dict__ = labelled.__dict__
        assert (plain.tolist(), plain.label, plain.device.type) == ([1.0, 1.0], "a", "cuda")
        first, second = torch.zeros(2, device="cuda"), torch.ones(3, device="cuda")
        torch.utils.swap_tensors(first, second)
        assert (first.tolist(), second.tolist()) == ([1.0] * 3, [0.0] * 2)


def test_its_syncs_are_those_of_any_tensor_and_gradients_flow():
    with predict_syncs() as syncs:
        weight = torch.ones(3, device="cuda", requires_grad=True)
        image = torch.ones(3).as_subclass(Plain).to("cuda")
        loss = (weight.as_subclass(Plain) * image).sum()
        loss.backward()
        assert syncs.total == 1
        assert (type(loss), weight.grad.tolist()) == (Plain, [1.0] * 3)
    assert syncs.total == 2


@pytest.mark.parametrize("kind", [Plain, lambda data: Labelled(data, "a")])
def test_it_is_printed_where_it_lies(kind):
    on_host = kind(torch.ones(2))
    if kind is Plain:
        on_host = torch.ones(2).as_subclass(Plain)
    expected = repr(on_host)
    with predict_syncs():
        assert repr(on_host) == expected
        assert repr(on_host.to("cuda")) == f"{expected[:-1]}, device='cuda:0')"
