"""What PyTorch computes on the CPU and not on CUDA: a program that asks for it fails on a GPU, so it fails here."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from steptrace.foreign_messages import TORCH_MISSES_KERNEL
from steptrace.predict.limit import cannot_follow
from steptrace.predict.operators import Overload

#: Products by the name of CUDA's function in its message. CUDA takes no whole numbers there, and the CPU does.
_PRODUCTS: Final = {
    "mm": "addmm_cuda", "addmm": "addmm_cuda", "addmm_": "addmm_cuda",
    "bmm": "baddbmm_cuda", "baddbmm": "baddbmm_cuda", "baddbmm_": "baddbmm_cuda",
    "mv": "addmv_impl_cuda", "addmv": "addmv_impl_cuda", "addmv_": "addmv_impl_cuda", "dot": "dot", "vdot": "vdot",
}  # fmt: skip
#: Whole numbers, by the names that PyTorch's messages have for them.
_WHOLE: Final = {
    torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long",
}  # fmt: skip

#: What CUDA computes on compressed sparse tensors and the CPU does not, by PyTorch's table of operators.
_COMPRESSED_ON_CUDA: Final = ("bmm.out", "baddbmm.out")


def refuse_if_not_on_cuda(overload: Overload, tensors: Sequence[Tensor]) -> None:
    """Raise CUDA's error for an operator that it has no kernel for.

    Args:
        overload: the operator.
        tensors: the tensors that it is given; some of them are on the virtual device.

    Raises:
        NotImplementedError: CUDA does not have the operator.
        RuntimeError: CUDA does not have it for this type of numbers.
    """
    if overload.only_on_cpu:
        raise NotImplementedError(
            f"Could not run {overload.func.name()!r} with arguments from the 'CUDA' backend: "
            "PyTorch has this operator on the CPU only"
        )
    kernel = _PRODUCTS.get(overload.packet)
    if kernel is not None and all(tensor.layout is torch.strided and tensor.numel() for tensor in tensors):
        kind = _WHOLE.get(tensors[-1].dtype)
        if kind is not None:
            raise RuntimeError(f'"{kernel}" not implemented for {kind!r}')


def error_of_cuda(error: Exception) -> Exception:
    """The error to raise for an operator of the device that the CPU could not compute.

    It names the kind of tensors as CUDA does if neither the CPU nor CUDA has the operator for it. If CUDA has it, it
    says that a prediction cannot follow the operator. Any other error is returned as it is.
    """
    missing = TORCH_MISSES_KERNEL.find(error) if isinstance(error, NotImplementedError) else None
    if missing is None:
        return error
    if missing["kind"] == "SparseCsr" and missing["operator"] in _COMPRESSED_ON_CUDA:
        return cannot_follow(f"`{missing['operator']}` of compressed sparse tensors", "convert them by `.to_dense()`")
    text = str(error)
    return NotImplementedError(f"{text[: missing.end('kind')]}CUDA{text[missing.end('kind') + len('CPU') :]}")
