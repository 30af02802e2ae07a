"""What operators without a form for fake tensors return on the virtual device: the CPU runs them on zeros.

PyTorch itself runs such an operator on the tensors' own device to learn the sizes of its results. The virtual device
has no memory, so the CPU runs it. An operator that only GPUs have runs by its substitute (`substitutes`).
The zeros take memory of the host. Where they would take much of it, the compiled code is not followed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor

from steptrace.format import size_bytes
from steptrace.predict.backend import DEVICE_TYPE
from steptrace.predict.substitutes import SUBSTITUTES
from steptrace.torch_names import owner_of, private

FakeTensor: Any = private("torch._subclasses.fake_tensor.FakeTensor")
pytree: Any = private("torch.utils._pytree")
#: A context in which operators run on the tensors inside of fake ones.
_WITHOUT_DISPATCH: Final = "torch.utils._mode_utils.no_dispatch"
_FALLBACK: Final = "torch._subclasses.fake_tensor.run_fallback_kernel"
#: The virtual device, and the one of the named GPU while its kernels are found.
_WITHOUT_MEMORY: Final = (DEVICE_TYPE, "cuda")
#: The most bytes that the arguments of one operator may take on the host. Chosen so that a laptop bears it.
MOST_BYTES: Final = 1 << 30


class TooLargeError(MemoryError):
    """An operator without a form for fake tensors would take too much memory of the host."""


@contextmanager
def fallbacks_on_host() -> Iterator[None]:
    """Let the CPU run the operators that PyTorch would run on the device of fake tensors."""
    owner = owner_of(_FALLBACK)
    name = _FALLBACK.rpartition(".")[2]
    with mock.patch.object(owner, name, _on_host_if_virtual(private(_FALLBACK))):
        yield


def _on_host_if_virtual(fallback: Callable[..., Any]) -> Callable[..., Any]:
    def run(mode: Any, func: Any, leaves: Sequence[Any], structure: Any, error: RuntimeError) -> Any:
        if not any(isinstance(leaf, FakeTensor) and leaf.fake_device.type in _WITHOUT_MEMORY for leaf in leaves):
            return fallback(mode, func, leaves, structure, error)
        if torch.Tag.inplace_view in func.tags:  # the sizes of a fake tensor would stay as they were
            raise error
        args, kwargs = pytree.tree_unflatten(list(leaves), structure)
        return on_host(mode, func, args, kwargs)

    return run


def on_host(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operator on fake tensors, from the CPU, as fake tensors on the device of its inputs.

    Args:
        mode: the mode of the fake tensors.
        func: the operator.
        args: its arguments by position.
        kwargs: its arguments by name.

    Raises:
        TooLargeError: its arguments take more than `MOST_BYTES` on the host.
    """
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    device = next((leaf.fake_device for leaf in leaves if isinstance(leaf, FakeTensor)), torch.device("cpu"))
    needed = sum(_bytes_of(leaf) for leaf in leaves if isinstance(leaf, FakeTensor))
    if needed > MOST_BYTES:
        raise TooLargeError(
            f"{func} has no form for fake tensors, and {size_bytes(needed)} of arguments are too much to run it on the "
            f"CPU (at most {size_bytes(MOST_BYTES)})"
        )
    fakes: dict[int, Tensor] = {}

    def real(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, FakeTensor):
            return value
        zeros = torch.zeros_like(value, device="cpu")
        if value.is_sparse:
            zeros._coalesced_(value.is_coalesced())
        fakes[id(zeros)] = value
        return zeros

    def fake(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in fakes:
            return fakes[id(value)]
        return fake_from(mode, value, device)

    with private(_WITHOUT_DISPATCH)(), torch.no_grad():
        inputs = pytree.tree_map(real, (list(args), dict(kwargs)))
        results = SUBSTITUTES.get(func, func)(*inputs[0], **inputs[1])
    return pytree.tree_map(fake, results)


def _bytes_of(tensor: Tensor) -> int:
    """Bytes of a tensor with zeros: those of its elements, or nearly none if it is sparse, as it then has none."""
    return int(tensor.numel()) * tensor.element_size() if tensor.layout is torch.strided else 0


def fake_from(mode: Any, tensor: Tensor, device: torch.device) -> Tensor:
    """A fake tensor like a tensor of the CPU, of any layout, on another device."""
    fake: Any = mode.fake_tensor_converter.from_real_tensor(mode, tensor)
    fake.fake_device = device
    result: Tensor = fake
    return result
