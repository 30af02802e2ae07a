"""Tests of what stands in for `torch.cuda`: called as the real functions are."""

import inspect
import warnings
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
    ("ExternalStream", "__init__"): ("stream_ptr", "device"),
}
#: Without a stand-in: called as a program calls it, it must work. Types and errors do nothing.
_AS_THEY_ARE: dict[str, Callable[[], object]] = {
    "device": lambda: torch.cuda.device(0).__enter__(),
    "device_of": lambda: torch.cuda.device_of(torch.ones(1, device="cuda")).__enter__(),
    "autocast": lambda: torch.amp.autocast("cuda").__enter__().__exit__(None, None, None),
    "GradScaler": lambda: torch.amp.GradScaler("cuda").scale(torch.ones(1, device="cuda")),
    "custom_fwd": lambda: torch.amp.custom_fwd(lambda _, x: x, device_type="cuda"),
    "custom_bwd": lambda: torch.amp.custom_bwd(lambda _, x: x, device_type="cuda"),
    "is_autocast_available": lambda: torch.amp.is_autocast_available("cuda"),
}
_TYPES = ("Storage", "Tensor", "Error")
_HARMLESS = [name for name in cuda_api.CUDA if isinstance(getattr(torch.cuda, name, None), FunctionType)]
_HARMLESS = [name for name in _HARMLESS if name not in (*cuda_api._REFUSED, "make_graphed_callables")]


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


def test_what_a_program_asks_the_device_has_an_answer() -> None:
    with predict_syncs():
        assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 0
        assert torch.cuda.default_generators[0].initial_seed() == torch.initial_seed()
        assert torch.cuda.Stream.priority_range()[0] == 0
        assert not torch.cuda.graphs.is_current_stream_capturing()
        assert torch.cuda.get_device_properties(0).max_threads_per_block == 1024
        with torch.cuda.caching_allocator_disabled():
            assert torch.ones(2, device="cuda").is_cuda


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


def test_every_public_function_of_torch_cuda_and_torch_amp_has_a_stand_in_or_works_as_it_is() -> None:
    public = {
        name
        for module, stand_ins in (
            (torch.cuda, cuda_api.CUDA),
            (torch.amp, {}),
            (torch.accelerator, cuda_api.ACCELERATOR),
        )
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and str(value.__module__).startswith("torch")
        if name not in stand_ins and not name.endswith(_TYPES)
    }
    assert public - {"classproperty", "cudaStatus"} == set(_AS_THEY_ARE)


@pytest.mark.parametrize("name", _AS_THEY_ARE)
def test_what_has_no_stand_in_works_as_it_is(name: str) -> None:
    with predict_syncs():
        _AS_THEY_ARE[name]()


@pytest.mark.parametrize("name", _HARMLESS)
def test_a_stand_in_answers(name: str) -> None:
    needed = [p for p in inspect.signature(getattr(torch.cuda, name)).parameters.values() if p.default is p.empty]
    with predict_syncs(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        getattr(torch.cuda, name)(*(0 for p in needed if p.kind is p.POSITIONAL_OR_KEYWORD))


@pytest.mark.parametrize("name", cuda_api._REFUSED)
def test_what_needs_a_real_device_is_refused_by_name(name: str) -> None:
    with predict_syncs(), pytest.raises(RuntimeError, match=f"torch.cuda.{name} is not there on steptrace's virtual"):
        getattr(torch.cuda, name)(*(0 for _ in inspect.signature(getattr(torch.cuda, name)).parameters))


def test_events_and_streams_of_torch_take_their_device_first_and_those_of_cuda_are_among_them() -> None:
    with predict_syncs():
        event, stream = torch.Event("cuda", enable_timing=True), torch.Stream("cuda", priority=-1)
        assert (event.enable_timing, event.device, stream.priority) == (True, torch.device("cuda", 0), -1)
        assert isinstance(torch.cuda.Event(True), torch.Event)
        assert isinstance(torch.cuda.ExternalStream(7, "cuda"), torch.Stream)


def test_marks_for_profilers_and_functions_of_submodules_are_harmless() -> None:
    with predict_syncs() as syncs, torch.cuda.nvtx.range("step"):
        torch.cuda.profiler.start()
        torch.cuda.memory._record_memory_history()
        torch.cuda.memory.reset_peak_memory_stats()
        assert torch.cuda.random.get_rng_state().dtype is torch.uint8
        torch.cuda.streams.Stream().synchronize()
        torch.cuda.cudart().cudaProfilerStop()
    assert [site.kind for site in syncs.sites] == ["stream"]
