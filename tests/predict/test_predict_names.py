"""A program sees "cuda" wherever PyTorch names the device, and after a prediction what it saw before it."""

import copy
import io
import json
import logging
import pickle
import subprocess
import sys
import warnings
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from steptrace.predict import backend, predict_syncs

CUDA_0 = torch.device("cuda", 0)
Named = namedtuple("Named", "device")


def on_gpu() -> torch.Tensor:
    return torch.ones(3, 4, device="cuda")


def saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def locations() -> list[str]:
    """What `torch.load` asks a function of the program for each storage."""
    asked: list[str] = []
    torch.load(saved(on_gpu()), map_location=lambda storage, place: (asked.append(place), storage)[1])
    return asked


def seen_in_hooks() -> list[object]:
    weight = nn.Parameter(on_gpu())
    seen = []
    (weight * 2).register_hook(lambda gradient: seen.append((gradient.device, gradient)))
    result = weight * 2
    result.register_hook(lambda gradient: seen.append((gradient.device, gradient)))
    result.sum().backward()
    return seen


def wrong_gradient() -> None:
    torch.zeros(2, requires_grad=True).grad = torch.zeros(2, device="cuda")


SEEN: dict[str, Callable[[], Any]] = {
    "tensor": on_gpu,
    "parameter": lambda: nn.Parameter(on_gpu()),
    "sparse": lambda: on_gpu().to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([on_gpu()[0]], layout=torch.jagged),
    "large, without values": lambda: torch.randn(300, 300, device="cuda"),
    "storage": lambda: (on_gpu().untyped_storage().device, on_gpu().untyped_storage()),
    "types": lambda: (on_gpu().type(), type(on_gpu())),
    "collections": lambda: {on_gpu().device: [Named(on_gpu().device), {"device": on_gpu().device}]},
    "log": lambda: logging.LogRecord("a", 1, "f", 1, "%s %r", (on_gpu().device, on_gpu()), None).getMessage(),
    "json": lambda: json.dumps({"device": str(on_gpu().device)}),
    "state": lambda: nn.Linear(2, 2).cuda().state_dict(),
    "file": lambda: saved({"tensor": on_gpu(), "device": on_gpu().device}).getvalue(),
    "loaded": lambda: torch.load(saved(on_gpu())),
    "locations": locations,
    "number": lambda: torch.device(0),
    "parsed": lambda: [torch._C._nn._parse_to(device) for device in ("cuda:0", 0, CUDA_0, on_gpu())],
    "default": lambda: torch.get_default_device(),
    "accelerator": lambda: (torch.accelerator.current_accelerator(), torch._C._accelerator_getAccelerator()),
    "module": lambda: (torch.get_device_module(), torch.get_device_module("cuda")),
    "autocast": lambda: vars(torch.autocast("cuda", torch.bfloat16)),
    "generator": lambda: torch.Generator("cuda").device,
    "scaler": lambda: torch.amp.GradScaler("cuda").state_dict(),
    "attributes": lambda: [name for owner in (torch, torch.Tensor, nn.Module) for name in dir(owner)],
    "hooks": seen_in_hooks,
    "copy": lambda: copy.deepcopy({"device": on_gpu().device, "tensor": on_gpu()}),
    "vmap": lambda: torch.vmap(lambda row: row * 2)(on_gpu()),
    "error": lambda: wrong_gradient(),
    "error of a backward pass": lambda: nn.Parameter(on_gpu()).sum().backward(torch.ones(3)),
}


@pytest.mark.parametrize("what", SEEN)
def test_no_other_name_of_the_device_is_seen(what: str) -> None:
    with predict_syncs():
        try:
            value = SEEN[what]()
            texts = [repr(value), str(value), f"{value}"]
        except RuntimeError as error:
            assert what.startswith("error")
            texts = [str(error)]
        if what in ("tensor", "parameter", "collections", "copy", "types"):
            texts.append(repr(pickle.dumps(value)))
    assert not [text for text in texts if backend.DEVICE_TYPE in text]


def test_devices_are_equal_to_those_that_a_program_writes() -> None:
    with predict_syncs():
        assert torch._C._nn._parse_to("cuda:0")[0] == torch._C._nn._parse_to(0)[0] == on_gpu().device == CUDA_0
        assert torch._C._nn._parse_to("cuda")[0] == torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch._C._nn._parse_to(CUDA_0, torch.float16, True)[1:3] == (torch.float16, True)
        assert torch.autocast("cuda").device == "cuda"


ASKED = """
import torch, warnings
from steptrace.predict import predict_syncs

def answers():
    asked = {
        "accelerator": torch.accelerator.current_accelerator,
        "available": lambda: torch.accelerator.current_accelerator(check_available=True),
        "count": torch.accelerator.device_count,
        "named": lambda: torch._C._get_accelerator(),
        "module": torch.get_device_module,
        "type": torch._utils._get_available_device_type,
        "backend": torch._C._get_privateuse1_backend_name,
        "default": torch.get_default_device,
        "autocast": lambda: torch.is_autocast_enabled("cuda"),
        "cuda": lambda: torch.zeros(2).cuda(),
        "CUDA": lambda: (torch.version.cuda, torch.backends.cuda.is_built(), torch.backends.cudnn.is_available()),
        "attributes": lambda: [len(dir(owner)) for owner in (torch, torch.Tensor, torch.nn.Module)],
        "threads": lambda: torch.is_anomaly_enabled(),
        "new": lambda: torch.Tensor([1.0]).device,
    }
    found = {}
    for name, ask in asked.items():
        try:
            found[name] = repr(ask())
        except Exception as error:
            found[name] = repr(error)
    return found

warnings.simplefilter("ignore")
import torch._dynamo
before = answers()
for _ in range(2):
    with predict_syncs() as syncs:
        model = torch.nn.Linear(2, 2).cuda()
        model(torch.zeros(2, 2, device="cuda")).sum().backward()
        answers()
    after = answers()
    assert after == before, {name: (before[name], after[name]) for name in before if before[name] != after[name]}
"""


def test_nothing_of_a_prediction_stays_in_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_module_is_scripted_while_its_functions_are_followed() -> None:
    """`torch.jit.script` knows `has_torch_function` and its like by identity, so these stay what they are."""
    with predict_syncs(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", FutureWarning)  # from 2.14 on
        values = nn.functional.dropout(on_gpu(), 0.5)
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Softmax(dim=-1)).eval())
        assert values.is_cuda
    assert scripted(torch.ones(3, 4)).shape == (3, 4)


def test_the_type_of_a_tensor_is_that_of_a_cuda_tensor():
    """As programs ask for it, and libraries that know a tensor by the name of its class."""
    with predict_syncs():
        kind = type(torch.ones(3, device="cuda"))
        assert kind == torch.Tensor
        assert kind in (list, torch.Tensor)
        assert {torch.Tensor: "tensor"}[kind] == "tensor"
        assert (kind.__module__, kind.__qualname__, kind.__name__) == ("torch", "Tensor", "Tensor")
        assert kind not in (list, torch.nn.Parameter)
        assert pickle.loads(pickle.dumps(kind)) is torch.Tensor


def test_tensors_and_parameters_print_as_on_cuda():
    with predict_syncs():
        values = torch.ones(2, device="cuda")
        assert repr(values) == "tensor([1., 1.], device='cuda:0')"
        assert repr(torch.nn.Parameter(values)) == (
            "Parameter containing:\ntensor([1., 1.], device='cuda:0', requires_grad=True)"
        )


def test_gradients_are_clipped_by_the_forms_for_lists_that_cuda_has():
    """PyTorch chooses them by the name of the device that its C++ tells for each group of tensors."""
    called = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with predict_syncs():
        weights = [nn.Parameter(torch.ones(3, device="cuda")) for _ in range(3)]
        for weight in weights:
            weight.grad = torch.ones(3, device="cuda")
        with Names():
            nn.utils.clip_grad_norm_(weights, 1.0)
            nn.utils.clip_grad_value_(weights, 1.0)
        groups = torch.utils._foreach_utils._group_tensors_by_device_and_dtype([weights])
        assert list(groups) == [(torch.device("cuda", 0), torch.float32)]
    assert {name for name in called if name.startswith("_foreach")} == {
        "_foreach_norm", "_foreach_mul_", "_foreach_clamp_min_", "_foreach_clamp_max_",
    }  # fmt: skip


#: What a program prints of a GPU, and the beginning of it on CUDA.
PRINTED: dict[str, tuple[Callable[[], object], str]] = {
    "stream": (lambda: torch.cuda.Stream(), "<torch.cuda.Stream device=cuda:0 cuda_stream=0x"),
    "current stream": (lambda: torch.cuda.current_stream(), "<torch.cuda.Stream device=cuda:0 cuda_stream=0x0>"),
    "any stream": (lambda: torch.Stream("cuda"), "torch.Stream device_type=cuda, device_index=0, stream_id="),
    "event": (lambda: torch.cuda.Event(), "<torch.cuda.Event uninitialized>"),
    "class of streams": (lambda: type(torch.cuda.Stream()), "<class 'torch.cuda.streams.Stream'>"),
    "class of events": (lambda: torch.Event, "<class 'torch.Event'>"),
    "generator": (lambda: torch.Generator("cuda"), "<torch._C.Generator object at 0x"),
    "default generator": (lambda: torch.cuda.default_generators[0], "<torch._C.Generator object at 0x"),
    "properties": (lambda: torch.cuda.get_device_properties(0), "_CudaDeviceProperties(name='NVIDIA H100"),
    "type of a complex tensor": (lambda: on_gpu().cfloat().type(), "torch.cuda.ComplexFloatTensor"),
    "type of a sparse tensor": (lambda: on_gpu().to_sparse().type(), "torch.cuda.sparse.FloatTensor"),
    "type of a nested tensor": (
        lambda: torch.nested.nested_tensor([on_gpu()], layout=torch.jagged).type(),
        "torch.cuda.FloatTensor",
    ),
    "memory of a nested tensor": (
        lambda: str(torch.nested.nested_tensor([on_gpu()], layout=torch.jagged).untyped_storage().device),
        "cuda:0",
    ),
    "type of a masked tensor": (
        lambda: torch.masked.masked_tensor(on_gpu(), on_gpu() > 0).type(),
        "torch.cuda.FloatTensor",
    ),
}


@pytest.mark.parametrize("name", PRINTED)
def test_what_a_program_prints_of_a_gpu_begins_as_on_cuda(name: str) -> None:
    make, expected = PRINTED[name]
    with predict_syncs(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested and masked tensors are prototypes
        assert str(make()).startswith(expected)


def test_a_stream_of_any_device_is_none_of_cuda_s_class_and_each_has_a_number() -> None:
    with predict_syncs():
        assert isinstance(torch.cuda.Stream(), torch.Stream)
        assert not isinstance(torch.Stream("cuda"), torch.cuda.Stream)
        assert torch.cuda.Stream().cuda_stream != torch.cuda.Stream().cuda_stream
        assert torch.cuda.Stream() != torch.cuda.current_stream() == torch.cuda.default_stream()
