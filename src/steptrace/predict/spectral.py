"""Fourier transforms of 16-bit numbers, which CUDA computes and the CPU does not.

The functions of `torch.fft` are made of three operators (`_fft_r2c`, `_fft_c2c`, `_fft_c2r`). PyTorch's C++ refuses
16-bit numbers on other devices before it calls an operator, so the functions are written here as in
`aten/src/ATen/native/SpectralOps.cpp`. The operators compute in 32 bits.
"""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.pytorch import aten, substitute_table
from steptrace.predict.tensor import is_virtual

_HALF: Final = (torch.float16, torch.complex32)
_R2C: Final[Any] = aten("_fft_r2c")
_C2C: Final[Any] = aten("_fft_c2c")
_C2R: Final[Any] = aten("_fft_c2r")
#: Codes of normalisation in these operators: none, by the root of the number of elements, by the number.
_NONE = 0
_BY_ROOT = 1
_BY_NUMBER = 2


def _code(norm: str | None, *, forward: bool) -> int:
    """The operators' code of `norm`."""
    if norm == "ortho":
        return _BY_ROOT
    return _BY_NUMBER if forward is (norm == "forward") else _NONE


class _Axes:
    """The axes of a transform, and how many elements of each it takes.

    A transform to real numbers reads about half of the elements of the last axis; `last` is the length of its result.
    """

    def __init__(self, values: Tensor, size: Any, dim: Any, *, to_real: bool) -> None:
        axes = range(-len(size) if size is not None else -values.dim(), 0) if dim is None else dim
        self.dims = [axis % values.dim() for axis in ([axes] if isinstance(axes, int) else axes)]
        sizes: Sequence[Any] = size if isinstance(size, list | tuple) else [size] * len(self.dims)
        self.lengths = [
            values.size(axis) if length in (None, -1) else int(length)
            for axis, length in zip(self.dims, sizes, strict=True)
        ]
        self.last = self.lengths[-1]
        if to_real:
            self.last = 2 * (self.last - 1) if sizes[-1] in (None, -1) else self.last
            self.lengths[-1] = self.last // 2 + 1

    def cut(self, values: Tensor) -> Tensor:
        """The values that the transform takes, with zeros where there are too few."""
        padding = [0] * (2 * values.dim())
        for axis, length in zip(self.dims, self.lengths, strict=True):
            values = values.narrow(axis, 0, length) if values.size(axis) > length else values
            padding[-1 - 2 * axis] = length - values.size(axis)
        return torch.nn.functional.pad(values, padding) if any(padding) else values


def _complex_to_complex(values: Tensor, axes: _Axes, norm: str | None, *, forward: bool, several: bool) -> Tensor:
    code = _code(norm, forward=forward)
    if values.is_complex() or several:
        values = axes.cut(values if values.is_complex() else values.to(torch.complex32))
        result: Tensor = _C2C(values, axes.dims, code, forward)
        return result
    result = _R2C(axes.cut(values), axes.dims, code, False)
    return result if forward else result.conj()


def _from_real(values: Tensor, axes: _Axes, norm: str | None, *, forward: bool, several: bool) -> Tensor:
    code = _code(norm, forward=forward)
    values = axes.cut(values)
    if forward or not several:
        result: Tensor = _R2C(values, axes.dims, code, True)
        return result if forward else result.conj()
    result = _R2C(values, axes.dims[-1:], code, True)
    if len(axes.dims) == 1:
        return result.conj()
    spread: Tensor = _C2C(torch.conj_physical(result), axes.dims[:-1], code, False)
    return spread


def _to_real(values: Tensor, axes: _Axes, norm: str | None, *, forward: bool, several: bool) -> Tensor:
    code = _code(norm, forward=forward)
    values = axes.cut(values if values.is_complex() else values.to(torch.complex32))
    dims = axes.dims
    if forward:
        if several and len(dims) > 1:
            values = _C2C(values, dims[:-1], code, True)
        values = values.conj()
        dims = dims[-1:]
    result: Tensor = _C2R(values, dims, code, axes.last)
    return result


def _transform(function: Callable[..., Tensor], kind: Callable[..., Tensor], default: Any, **options: bool) -> Any:
    """The function, with a separate result for 16-bit numbers on the GPU."""

    @wraps(function)
    def transform(input: Tensor, s: Any = None, dim: Any = default, norm: str | None = None, **named: Any) -> Tensor:
        is_half = is_virtual(input) and input.dtype in _HALF
        if not is_half or named.get("out") is not None:
            size = {} if s is None else {"n" if isinstance(default, int) else "s": s}
            return function(input, **size, dim=dim, norm=norm, **named)
        axes = _Axes(input, named.get("n", s), dim, to_real=kind is _to_real)
        return kind(input, axes, norm, **options)

    return transform


def _transforms() -> dict[Any, Callable[..., Tensor]]:
    """The functions of `torch.fft` that transform values: over one axis, over two, over several."""
    transforms = {}
    kinds = {"": _complex_to_complex, "r": _from_real, "h": _to_real}
    for ending, default in (("", -1), ("2", (-2, -1)), ("n", None)):
        several = bool(ending)
        for letter, kind in kinds.items():
            back = {"": _complex_to_complex, "r": _to_real, "h": _from_real}[letter]
            for prefix, form in (("", kind), ("i", back)):
                function = getattr(torch.fft, f"{prefix}{letter}fft{ending}")
                transforms[function] = _transform(function, form, default, forward=not prefix, several=several)
    return transforms


#: The replacements of functions of `torch.fft`.
REPLACED: Final = _transforms()


def _in_32_bits(operator: Any, values: Tensor, dim: list[int], *rest: Any, **named: Any) -> Tensor:
    """One of the three operators."""
    if values.dtype not in _HALF:
        computed: Tensor = operator(values, dim, *rest, **named)
        return computed
    wide = torch.complex64 if values.is_complex() else torch.float32
    result: Tensor = operator(values.to(wide), dim, *rest, **named)
    lengths = [max(result.size(axis), values.size(axis)) for axis in dim]
    if any(length & (length - 1) for length in lengths):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, "
            f"but got a signal size of{lengths}"
        )
    return result.to(torch.complex32 if result.is_complex() else torch.float16)


SUBSTITUTES: Final = substitute_table(
    *((name, partial(_in_32_bits, aten(name))) for name in ("_fft_r2c", "_fft_c2c", "_fft_c2r"))
)
