"""Tests of what stands in for `torch.cuda`: called as the real functions are."""

import copy
import importlib
import inspect
import itertools
import pickle
import pkgutil
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn

from steptrace.predict import backend, cuda_api, cuda_functions, predict_syncs
from steptrace.predict.limit import CannotFollowError

#: The public modules below `torch.cuda`.
_BELOW = {
    name: importlib.import_module(f"torch.cuda.{name}")
    for _, name, _ in pkgutil.iter_modules(torch.cuda.__path__)
    if not name.startswith("_")
}
_MODULES = (
    (torch.cuda, cuda_functions.CUDA),
    (torch.accelerator, cuda_functions.ACCELERATOR),
    *((_BELOW[name], stand_ins) for name, stand_ins in cuda_functions.MODULES.items()),
)
_FUNCTIONS = [
    (module, name)
    for module, stand_ins in _MODULES
    for name in stand_ins
    if isinstance(getattr(module, name, None), FunctionType)
]
#: Classes that can be used here, and their public methods and constructors, with what the stand-in calls these.
_CLASSES = ("Event", "Stream", "ExternalStream", "StreamContext")
_METHODS = [
    (kind, method)
    for kind in _CLASSES
    for method, value in vars(getattr(torch.cuda, kind)).items()
    if isinstance(value, FunctionType | staticmethod | classmethod)
    if not method.startswith("_") or method in ("__new__", "__init__", "__cuda_stream__")
]
_CONSTRUCTOR = {"__new__": "__init__"}


def _scales() -> None:
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    weight = torch.ones(1, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler.scale([weight.sum()])[0].backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    scaler.load_state_dict(scaler.state_dict())
    assert (scaler.get_scale(), scaler.is_enabled(), weight.item()) == (4.0, True, pytest.approx(0.9))


def _captures() -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(1, device="cuda")


def _graphs_a_callable() -> None:
    torch.cuda.make_graphed_callables(nn.Linear(2, 2).cuda(), (torch.ones(1, 2, device="cuda"),))


#: Without a stand-in: called as a program calls it, it must work. Types and errors do nothing.
_AS_THEY_ARE: dict[str, Callable[[], object]] = {
    "cuda.is_bf16_supported": lambda: torch.cuda.is_bf16_supported(),
    "cuda.device": lambda: torch.cuda.device(0).__enter__(),
    "cuda.device_of": lambda: torch.cuda.device_of(torch.ones(1, device="cuda")).__enter__(),
    "amp.autocast": lambda: torch.amp.autocast("cuda").__enter__().__exit__(None, None, None),
    "amp.GradScaler": _scales,
    "amp.custom_fwd": lambda: torch.amp.custom_fwd(lambda _, x: x, device_type="cuda"),
    "amp.custom_bwd": lambda: torch.amp.custom_bwd(lambda _, x: x, device_type="cuda"),
    "amp.is_autocast_available": lambda: torch.amp.is_autocast_available("cuda"),
    "cuda.amp.autocast": lambda: torch.cuda.amp.autocast().__enter__().__exit__(None, None, None),
    "cuda.amp.GradScaler": lambda: torch.cuda.amp.GradScaler().scale(torch.ones(1, device="cuda")),
    "cuda.amp.custom_fwd": lambda: torch.cuda.amp.custom_fwd(lambda _, x: x),
    "cuda.amp.custom_bwd": lambda: torch.cuda.amp.custom_bwd(lambda _, x: x),
    "cuda.amp.amp_definitely_not_available": lambda: torch.cuda.amp.amp_definitely_not_available(),
    "cuda.nvtx.range_push": lambda: torch.cuda.nvtx.range_push("step"),
    "cuda.nvtx.range_pop": lambda: torch.cuda.nvtx.range_pop(),
    "cuda.nvtx.range_start": lambda: torch.cuda.nvtx.range_start("step"),
    "cuda.nvtx.range_end": lambda: torch.cuda.nvtx.range_end(0),
    "cuda.nvtx.mark": lambda: torch.cuda.nvtx.mark("step"),
    "cuda.nvtx.range": lambda: torch.cuda.nvtx.range("step").__enter__(),
    "cuda.profiler.start": lambda: torch.cuda.profiler.start(),
    "cuda.profiler.stop": lambda: torch.cuda.profiler.stop(),
    "cuda.profiler.profile": lambda: torch.cuda.profiler.profile().__enter__(),
    **{
        f"{module}.{name}": call
        for module in ("cuda", "cuda.graphs")
        for name, call in (("graph", _captures), ("make_graphed_callables", _graphs_a_callable))
    },
}
_TYPES = ("Storage", "Tensor", "Error")
_REFUSING = list(cuda_api.refusals())


def test_a_stand_in_takes_the_names_and_defaults_of_the_real_function():
    real = [(module, name, inspect.signature(getattr(module, name))) for module, name in _FUNCTIONS]
    with predict_syncs():
        differ = [f"{m.__name__}.{name}" for m, name, own in real if inspect.signature(getattr(m, name)) != own]
    assert differ == []


def test_a_stand_in_takes_every_argument_of_the_real_function():
    for module, name in _FUNCTIONS:
        parameters = inspect.signature(getattr(module, name)).parameters.values()
        positional = [None for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        named = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
        inspect.signature(dict(_MODULES)[module][name]).bind(*positional, **named)


def _parameters(function: Any) -> list[tuple[str, object, object]]:
    """Names, defaults and kinds; what takes any others has any name."""
    others = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = list(inspect.signature(function).parameters.values())
    return [("" if p.kind in others else p.name, p.default, p.kind) for p in parameters]


def test_streams_and_events_take_the_names_and_defaults_of_the_real_ones():
    for kind, method in _METHODS:
        real = _parameters(getattr(getattr(torch.cuda, kind), method))
        stand_in = _parameters(getattr(cuda_functions.CUDA[kind], _CONSTRUCTOR.get(method, method)))
        own = int(method in ("__new__", "__init__") or real[:1] == [("self", inspect.Parameter.empty, real[0][2])])
        assert stand_in[own:] == real[own:], (kind, method)


@pytest.mark.parametrize("kind", ["Stream", "Event"])
def test_streams_and_events_have_what_those_of_torch_have(kind):
    names = [name for name in dir(getattr(torch, kind)) if not name.startswith("_")]
    stand_ins = cuda_functions.CUDA[kind](), cuda_functions.TORCH[kind]()
    assert [name for name in names for one in stand_ins if not hasattr(one, name)] == []


def test_the_current_stream_is_the_one_that_the_program_has_chosen():
    with predict_syncs():
        stream = torch.cuda.Stream()
        other = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            assert torch.cuda.current_stream() is stream
            with torch.cuda.stream(other), torch.cuda.stream(None):
                assert torch.accelerator.current_stream() is torch.cuda.current_stream("cuda:0") is other
            assert torch.cuda.current_stream() is stream
        with stream:
            assert torch.cuda.current_stream() is stream
        assert torch.cuda.current_stream() is torch.cuda.default_stream()
        torch.cuda.set_stream(stream)
        assert torch.cuda.current_stream() is stream
    with predict_syncs():
        assert torch.cuda.current_stream() is torch.cuda.default_stream()


def test_a_stream_and_an_event_are_used_by_keyword():
    with predict_syncs() as syncs:
        stream = torch.cuda.Stream(device="cuda")
        event = torch.cuda.Event(enable_timing=True)
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


def test_an_event_without_a_time_or_a_record_is_refused_as_cuda_does():
    with predict_syncs() as syncs:
        untimed = torch.cuda.Event()
        timed = torch.cuda.Event(enable_timing=True)
        with pytest.raises(ValueError, match="created with argument 'enable_timing=True'"):
            untimed.elapsed_time(timed)
        with pytest.raises(ValueError, match="must be recorded"):
            timed.elapsed_time(timed)
        untimed.synchronize()
    assert syncs.total == 0


def test_a_program_is_told_the_memory_that_its_tensors_take():
    """Programs divide by these figures, and print them."""
    with predict_syncs() as syncs:
        before = torch.cuda.memory_allocated()
        kept = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        given_back = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        del given_back
        assert torch.cuda.memory_allocated("cuda:0") - before == kept.nbytes
        assert torch.cuda.max_memory_allocated() - before == 2 * kept.nbytes
        assert torch.cuda.memory_reserved() >= torch.cuda.max_memory_allocated()
        free, total = torch.cuda.mem_get_info()
        assert total - free == torch.cuda.memory_reserved()
        stats = torch.cuda.memory_stats()
        assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
        assert stats["num_ooms"] == 0
        nested = torch.cuda.memory_stats_as_nested_dict()
        assert nested["allocated_bytes"]["all"]["peak"] == torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() - before == kept.nbytes
        assert syncs.peak_memory_bytes - before == 2 * kept.nbytes


def test_what_a_program_asks_the_device_has_an_answer():
    with predict_syncs():
        assert torch.cuda.host_memory_stats_as_nested_dict() == {}
        assert "no statistics" in torch.cuda.memory.memory_summary(abbreviated=True)
        assert torch.cuda.memory._snapshot()["segments"] == torch.cuda.memory_snapshot() == []
        assert torch.cuda.host_memory_stats()["allocated_bytes.peak"] == 0
        assert torch.cuda.default_generators[0].initial_seed() == torch.initial_seed()
        assert torch.cuda.Stream.priority_range()[0] == 0
        assert not torch.cuda.graphs.is_current_stream_capturing()
        assert torch.cuda.get_device_properties(0).max_threads_per_block == 1024
        if hasattr(torch.cuda, "caching_allocator_disabled"):  # not in PyTorch 2.11
            with torch.cuda.caching_allocator_disabled():
                assert torch.ones(2, device="cuda").is_cuda


def _layers() -> nn.Module:
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(2))
    return nn.Sequential(*layers, nn.Linear(36, 8), nn.TransformerEncoderLayer(8, 2, batch_first=True))


@pytest.mark.parametrize("convert", [nn.Module.float, nn.Module.half, nn.Module.cuda, nn.Module.eval])
def test_a_model_is_validated_in_inference_mode_and_trained_on(convert):
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


def test_autocast_takes_any_type_without_a_warning():
    with predict_syncs(), torch.autocast("cuda", dtype=torch.float32):  # warnings are errors
        assert (torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")).dtype is torch.float32


def _public(module: Any) -> list[str]:
    """The functions and classes of a module; of one below `torch.cuda` those that are defined there."""
    below = module in _BELOW.values() and module.__name__ != "torch.cuda.amp"
    return [
        name
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and not name.endswith(_TYPES)
        if (value.__module__ == module.__name__ if below else str(value.__module__).startswith("torch"))
    ]


def test_a_warning_of_the_program_is_shown_once_a_line():
    with warnings.catch_warnings(record=True) as shown, predict_syncs():
        warnings.simplefilter("default")
        for _ in range(3):
            with torch.autocast("cuda", dtype=torch.bfloat16), torch.cuda.amp.autocast():
                pass
    assert len(shown) == 1


def test_every_public_function_and_class_of_torch_cuda_and_torch_amp_has_a_stand_in_or_works_as_it_is():
    modules = (torch.cuda, torch.amp, torch.accelerator, *_BELOW.values())
    real = {(module, name): getattr(module, name) for module in modules for name in _public(module)}
    with predict_syncs():
        same = {f"{m.__name__}.{name}" for (m, name), value in real.items() if getattr(m, name) is value}
    assert same - {"torch.cuda.classproperty", "torch.cuda.cudaStatus"} == {f"torch.{name}" for name in _AS_THEY_ARE}


def test_what_has_no_stand_in_works_as_it_is():
    for call in _AS_THEY_ARE.values():
        with predict_syncs(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            call()


def _needed(function: Any) -> list[int]:
    """A value for each argument that a call must give; none to a class of a CUDA build that hides its constructor's."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [0 for p in parameters if p.default is p.empty and p.kind in kinds]


def test_a_stand_in_answers():
    calls = [(module, name, _needed(getattr(module, name))) for module, name in _FUNCTIONS]
    with predict_syncs(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        own = {"set_stream": [torch.cuda.Stream()], "reduce": [[torch.ones(1, device="cuda")]]}
        for module, name, arguments in calls:
            getattr(module, name)(*own.get(name, arguments))


def test_what_a_later_release_adds_to_torch_cuda_is_refused_by_its_name(monkeypatch):
    def added(_device: object = None) -> int:
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(added, "__module__", "torch.cuda")
    monkeypatch.setattr(torch.cuda, "added", added, raising=False)
    with predict_syncs(), pytest.raises(NotImplementedError, match=r"torch\.cuda\.added"):
        torch.cuda.added()
    assert torch.cuda.added is added


@pytest.mark.parametrize("module", ["gds", "jiterator", "nccl"])
def test_modules_for_a_real_device_are_refused(module):
    assert any(owner is _BELOW[module] for owner, _ in _REFUSING)


def test_what_needs_a_real_device_is_refused_by_name():
    calls = [(module, name, _needed(getattr(module, name))) for module, name in _REFUSING]
    with predict_syncs():
        for module, name, arguments in calls:
            refused = rf"cannot follow {re.escape(module.__name__)}\.{name}, which CUDA can"
            with pytest.raises(RuntimeError, match=refused):
                getattr(module, name)(*arguments)


def test_a_scale_that_overflows_leaves_weights_finite():
    """On CUDA the scaler leaves such steps out until the scale fits; a prediction follows those that train."""
    with predict_syncs():
        weight = torch.ones(4, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale((weight * torch.tensor([1.0, 1e35, torch.inf, torch.nan], device="cuda")).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert torch.isfinite(weight).all()
        assert weight[0] < 1  # and it trains


def test_an_event_has_no_handle_for_other_processes():
    with predict_syncs():
        with pytest.raises(RuntimeError, match=r"cannot follow torch\.cuda\.Event\.ipc_handle, which CUDA can"):
            torch.cuda.Event(interprocess=True).ipc_handle()
        with pytest.raises(RuntimeError, match=r"cannot follow torch\.cuda\.Event\.from_ipc_handle"):
            torch.cuda.Event.from_ipc_handle("cuda", b"")


def test_streams_are_equal_by_their_number_and_their_gpu(monkeypatch):
    monkeypatch.setattr(backend.machine, "gpus", 2)
    with predict_syncs():
        stream = torch.cuda.Stream()
        again = torch.cuda.Stream(
            stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
        )
        assert again == stream
        assert len({again, stream, torch.cuda.Stream(), torch.cuda.Stream(1)}) == 3
        assert torch.cuda.ExternalStream(7) == torch.cuda.ExternalStream(7)
        assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1) != torch.cuda.default_stream(0)
        assert torch.cuda.current_stream(1).device == torch.device("cuda:1")


def test_a_stream_of_another_gpu_makes_that_gpu_the_current_one(monkeypatch):
    monkeypatch.setattr(backend.machine, "gpus", 2)
    with predict_syncs():
        first = torch.cuda.Stream(0)
        second = torch.cuda.Stream(1)
        with torch.cuda.stream(first):
            with torch.cuda.stream(second):
                assert torch.ones(1, device="cuda").device.index == torch.cuda.current_device() == 1
                assert (torch.cuda.current_stream(), torch.cuda.current_stream(0)) == (second, first)
            assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (0, first)
            assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1)
        torch.cuda.set_stream(second)
        assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (1, second)
        assert torch._C._cuda_getCurrentStream(1)[:2] == (second.stream_id, 1)


def test_a_program_asks_the_driver_by_pynvml(monkeypatch):
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        pass
    else:
        pytest.skip("this machine has a driver of its own")
    monkeypatch.setattr(backend.machine, "gpus", 2)
    with predict_syncs():
        kept = torch.empty(2**20, device="cuda")
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in range(pynvml.nvmlDeviceGetCount())]
        assert [pynvml.nvmlDeviceGetName(handle) for handle in handles] == [torch.cuda.get_device_name()] * 2
        memory = pynvml.nvmlDeviceGetMemoryInfo(handles[0])
        assert memory.used == memory.total - memory.free >= kept.nbytes
        assert memory.total == torch.cuda.get_device_properties(0).total_memory
        assert pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(handles[1])) == handles[1]
        for refused in (
            lambda: pynvml.nvmlDeviceGetHandleByIndex(2),
            lambda: pynvml.nvmlDeviceGetFanSpeed(handles[0]),
        ):
            with pytest.raises(pynvml.NVMLError):
                refused()
    with pytest.raises(pynvml.NVMLError):
        pynvml.nvmlInit()


def test_a_stream_of_torch_is_the_current_one_as_one_of_cuda():
    with predict_syncs():
        stream = torch.Stream(device="cuda")
        with stream:
            assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
            assert torch.cuda.current_stream().cuda_stream == stream.stream_id
        assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_events_and_streams_of_torch_take_their_device_first_and_those_of_cuda_are_among_them():
    with predict_syncs():
        event = torch.Event("cuda", enable_timing=True)
        stream = torch.Stream("cuda", priority=-1)
        assert (event.enable_timing, event.device, stream.priority) == (True, torch.device("cuda", 0), -1)
        assert isinstance(torch.cuda.Event(True), torch.Event)
        assert isinstance(torch.cuda.ExternalStream(7, "cuda"), torch.Stream)


def test_marks_for_profilers_and_functions_of_submodules_are_harmless():
    with predict_syncs() as syncs, torch.cuda.nvtx.range("step"):
        torch.cuda.profiler.start()
        torch.cuda.memory._record_memory_history()
        torch.cuda.memory.reset_peak_memory_stats()
        assert torch.cuda.random.get_rng_state().dtype is torch.uint8
        torch.cuda.streams.Stream().synchronize()
        torch.cuda.cudart().cudaProfilerStop()
    assert [site.kind for site in syncs.sites] == ["stream"]


def test_a_program_that_profiles_itself_gets_no_warning_for_each_operator(capfd):
    with predict_syncs():
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda")
        assert "aten::mm" in profiler.key_averages().table(sort_by="cuda_time_total")
        with torch.autograd.profiler.profile(enabled=False, use_device="cuda"):
            torch.ones(4, device="cuda").sum()
    assert "Failed to record CUDA event" not in capfd.readouterr().err


def test_memory_that_a_program_pins_itself_counts_as_pinned():
    batch = torch.ones(4)
    other = torch.ones(4)
    with predict_syncs():
        runtime = torch.cuda.cudart()
        assert runtime.cudaHostRegister(batch.data_ptr(), batch.nbytes, 0) == runtime.cudaError.success
        assert [batch.is_pinned(), batch[1:].is_pinned(), other.is_pinned()] == [True, True, False]
        runtime.cudaHostUnregister(batch.data_ptr())
        assert not batch.is_pinned()
        assert torch.tensor([1, 2], pin_memory=True).is_pinned()
        assert torch.as_tensor([1, 2]).is_pinned() is False
        assert runtime.cudaMemGetInfo(0) == torch.cuda.mem_get_info()


def test_states_of_generators_have_the_form_of_cuda_s_and_bring_back_what_they_drew():
    with predict_syncs():
        generator = torch.Generator(device="cuda:0")
        state = generator.get_state()
        assert state.shape == torch.cuda.get_rng_state().shape == (16,)
        drawn = torch.rand(3, device="cuda", generator=generator)
        generator.set_state(state)
        assert torch.rand(3, device="cuda", generator=generator).equal(drawn)
        copied = generator.clone_state()
        assert copied.device == torch.device("cuda:0")
        expected = torch.rand(3, device="cuda", generator=generator)
        assert torch.rand(3, device="cuda", generator=copied).equal(expected)
        generator.set_state(torch.cuda.get_rng_state())
        generator.set_offset(8)
        assert generator.get_offset() == 8
        assert isinstance(torch.default_generator, torch.Generator)
        assert torch.Generator().get_state().numel() > 16
        with pytest.raises(RuntimeError, match="wrong size"):
            generator.set_state(torch.get_rng_state())


def test_a_generator_is_pickled_and_copied():
    with predict_syncs():
        generator = torch.Generator("cuda").manual_seed(3)
        torch.rand(1, device="cuda", generator=generator)
        copies = [pickle.loads(pickle.dumps(generator)), copy.deepcopy(generator)]
        drawn = torch.rand(1, device="cuda", generator=generator)
        for copied in copies:
            assert copied.device == torch.device("cuda:0")
            assert torch.rand(1, device="cuda", generator=copied).equal(drawn)
        of_cpu = pickle.dumps(torch.Generator().manual_seed(3))
        assert isinstance(pickle.loads(of_cpu), torch.Generator)
    assert pickle.loads(of_cpu).initial_seed() == 3


def test_the_default_generator_of_a_gpu_draws_what_is_drawn_without_one():
    with predict_syncs():
        default = torch.cuda.default_generators[0]
        before = torch.get_rng_state()
        default.set_state(torch.cuda.get_rng_state())
        default.set_offset(default.get_offset())
        assert default.get_state().shape == (16,)
        assert torch.get_rng_state().equal(before)
        torch.manual_seed(3)
        drawn = torch.rand(3, device="cuda", generator=default)
        torch.manual_seed(3)
        assert torch.rand(3, device="cuda").equal(drawn)


def test_a_build_for_the_cpu_has_the_settings_of_one_for_cuda():
    """Each of them ended the program with an error of the build for the CPU."""
    with predict_syncs() as syncs:
        with torch.backends.cudnn.flags(enabled=False, benchmark_limit=5):
            assert not torch.backends.cudnn.enabled
        plans = torch.backends.cuda.cufft_plan_cache
        plans[0].max_size = 10
        plans.clear()
        torch.backends.cuda.preferred_linalg_library("cusolver")
        torch.backends.cuda.preferred_blas_library("cublaslt")
        torch.compiler.cudagraph_mark_step_begin()
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            assert torch.range(0, 3, device="cuda").tolist() == [0, 1, 2, 3]
        for name in ("_cuda_getDevice", "_cuda_getDeviceCount"):
            assert getattr(torch._C, name)() == int(name.endswith("Count"))
    assert syncs.total == 1  # tolist()


def test_the_settings_of_tunable_products_are_kept():
    tunable = torch.cuda.tunable
    with predict_syncs():
        assert not tunable.is_enabled()
        tunable.enable()
        tunable.tuning_enable(False)
        tunable.set_max_tuning_iterations(3)
        assert (tunable.is_enabled(), tunable.tuning_is_enabled(), tunable.get_max_tuning_iterations()) == (
            True,
            False,
            3,
        )
        assert tunable.get_results() == ()


def test_functions_that_differ_have_stand_ins_that_differ():
    """Dynamo has a table of handlers by function, and fails to be imported if two of its keys are the same."""
    names = [(module, name) for module, stand_ins in _MODULES for name in stand_ins if hasattr(module, name)]
    real = {(module.__name__, name): getattr(module, name) for module, name in names}
    with predict_syncs():
        during = {(module.__name__, name): getattr(module, name) for module, name in names}
    functions = [place for place, stand_in in during.items() if isinstance(stand_in, FunctionType)]
    shared = [
        (first, second)
        for first, second in itertools.combinations(functions, 2)
        if during[first] is during[second] and real[first] is not real[second]
    ]
    assert shared == []


def test_classes_of_tensors_are_called_as_without_a_prediction():
    """As `torch.nn.attention.bias.causal_lower_right` calls one."""

    class Own(torch.Tensor):
        pass

    with predict_syncs():
        assert isinstance(Own(2, 3), Own)
        assert Own([1.0, 2.0]).shape == (2,)
        with pytest.raises(CannotFollowError, match=r"Own\(\) of a tensor on the GPU"):
            Own(torch.ones(2, device="cuda"))
        flags = torch.tensor([True, False, True], device="cuda")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # PyTorch calls masked tensors a prototype
            total = torch.masked.masked_tensor(torch.ones(3, device="cuda"), flags).sum()
        assert total.get_data().item() == 2


RESETS = """
import torch
from steptrace.predict import predict_syncs
before = "_cuda_CUDAAllocator_AllocatorState" in vars(torch._C)
with predict_syncs():
    torch._dynamo.reset()
    torch.compiler.reset()
    torch._inductor.cudagraph_mark_step_begin()
print(before is ("_cuda_CUDAAllocator_AllocatorState" in vars(torch._C)))
"""


def test_a_program_forgets_compiled_code_as_with_a_build_for_cuda():
    """That imports Inductor's module for CUDA graphs, which wants names of such a build. None stays in the process."""
    done = subprocess.run([sys.executable, "-c", RESETS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


@pytest.mark.skipif(not hasattr(torch.accelerator, "memory"), reason="not in this PyTorch")
def test_memory_of_the_accelerator_is_asked_by_its_module():
    with predict_syncs():
        memory = torch.accelerator.memory
        memory.empty_host_cache()
        held = torch.ones(1000, device="cuda")
        assert memory.memory_allocated() == torch.cuda.memory_allocated() >= held.nbytes


@pytest.mark.parametrize("devices", [["cuda:0"], [torch.device("cuda", 0)], [0], [], None])
def test_a_future_holds_tensors_of_the_device(devices):
    with predict_syncs() as syncs:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        later = future.then(lambda done: done.value() + 1)
        future.set_result(torch.ones(2, device="cuda"))
        assert (future.done(), later.wait().device, syncs.total) == (True, torch.device("cuda:0"), 0)
    with pytest.raises(RuntimeError):
        torch.futures.Future(devices=["cuda:0"])


def test_the_allocator_answers_pytorch_s_private_functions_as_its_public_ones():
    with predict_syncs():
        kept = torch.ones(1000, device="cuda")
        private = torch._C._cuda_memoryStats(0)
        torch._C._cuda_resetPeakMemoryStats(0)
        torch._C._cuda_emptyCache()
        assert private["allocated_bytes"]["all"]["current"] == torch.cuda.memory_allocated() >= kept.nbytes
