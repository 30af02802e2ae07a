"""Tests of what stands in for `torch.cuda`: called as the real functions are."""

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn

from steptrace.predict import cuda_api, predict_syncs

_MODULES = ((torch.cuda, cuda_api.CUDA), (torch.accelerator, cuda_api.ACCELERATOR))
_FUNCTIONS = [
    pytest.param(module, name, id=f"{module.__name__}.{name}")
    for module, stand_ins in _MODULES
    for name in stand_ins
    if isinstance(getattr(module, name, None), FunctionType)
]
#: Constructors and methods, which C++ or `__new__` hide from `inspect`: parameters that the stand-in must know.
_METHODS: dict[tuple[str, str], tuple[str, ...]] = {
    ("Event", "__init__"): ("enable_timing", "blocking"),
    ("Event", "record"): ("stream",),
    ("Event", "wait"): ("stream",),
    ("Event", "elapsed_time"): ("end_event",),
    ("Stream", "__init__"): ("device", "priority"),
    ("Stream", "wait_event"): ("event",),
    ("Stream", "wait_stream"): ("stream",),
    ("Stream", "record_event"): ("event",),
    ("StreamContext", "__init__"): ("stream",),
}


@pytest.mark.parametrize(("module", "name"), _FUNCTIONS)
def test_a_stand_in_takes_the_names_and_defaults_of_the_real_function(module: Any, name: str) -> None:
    real = inspect.signature(getattr(module, name))
    with predict_syncs():
        assert inspect.signature(getattr(module, name)) == real


@pytest.mark.parametrize(("module", "name"), _FUNCTIONS)
def test_a_stand_in_takes_every_argument_of_the_real_function(module: Any, name: str) -> None:
    parameters = inspect.signature(getattr(module, name)).parameters.values()
    positional = [None for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
    stand_in = dict(_MODULES)[module][name]
    inspect.signature(stand_in).bind(*positional, **named)


@pytest.mark.parametrize(("kind", "method"), _METHODS)
def test_streams_and_events_take_the_names_of_the_real_ones(kind: str, method: str) -> None:
    parameters = list(inspect.signature(getattr(cuda_api.CUDA[kind], method)).parameters)
    assert tuple(parameters[1 : 1 + len(_METHODS[kind, method])]) == _METHODS[kind, method]
    if isinstance(real := getattr(getattr(torch.cuda, kind), method), FunctionType) and method != "__init__":
        assert list(inspect.signature(real).parameters) == parameters


def test_a_stream_and_an_event_are_used_by_keyword() -> None:
    with predict_syncs() as syncs:
        stream, event = torch.cuda.Stream(device="cuda"), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream=stream):
            event.record(stream=stream)
        stream.wait_event(event=event)
        event.synchronize()
        stream.synchronize()
        torch.cuda.synchronize(device=0)
    assert [site.kind for site in syncs.sites] == ["event", "stream", "device"]
    assert [site.code for site in syncs.sites] == [
        "event.synchronize()",
        "stream.synchronize()",
        "torch.cuda.synchronize(device=0)",
    ]


def _layers() -> nn.Module:
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(2))
    return nn.Sequential(*layers, nn.Linear(36, 8), nn.TransformerEncoderLayer(8, 2, batch_first=True))


@pytest.mark.parametrize("convert", [nn.Module.float, nn.Module.half, nn.Module.cuda, nn.Module.eval])
def test_a_model_is_validated_in_inference_mode_and_trained_on(convert: Callable[[nn.Module], nn.Module]) -> None:
    with predict_syncs() as syncs:
        model = _layers().cuda()
        images = torch.randn(2, 3, 8, 8, device="cuda")
        syncs.reset()
        with torch.inference_mode():
            model.eval()(images).sum().item()
            model[0].weight.detach().view(-1)[:3].clone()
            convert(model)
            model.float().train()
        model(images).sum().backward()
    assert [(site.kind, site.count) for site in syncs.sites] == [("d2h_copy", 1)]


def test_autocast_takes_any_type_without_a_warning() -> None:
    with predict_syncs(), torch.autocast("cuda", dtype=torch.float32):  # warnings are errors
        assert (torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")).dtype is torch.float32
