"""Tensors of the virtual device without values: large floating-point ones, and those computed from them.

The tensor inside is then on PyTorch's `meta` device, which knows shapes only. A small result of uncomputed inputs is
filled with a placeholder, and its memory is marked as assumed. A value that the program reads from it is assumed, and
so is a size that depends on it. Both are recorded with their line.

Whole numbers, flags, small tensors and data from the host keep their values, so that control flow and sizes that depend
on data are as usual. Data from the host loses its values in a matrix product, and where it meets a weight or a random
draw.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.memory import Marks
from steptrace.predict.meta import META, on_meta, to_meta
from steptrace.predict.operators import Overload, tensors_of
from steptrace.predict.pytorch import has_kernel
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import map_tensors

#: Floating-point tensors of this many elements or more have no values.
_LARGE: Final = 2**16
#: The same limit for tensors whose values come from the host.
_LARGE_DATA: Final = 2**24
#: Weights on the host of this many elements or more are not initialised. They are moved before they are read.
_LARGE_WEIGHT: Final = 2**20
#: The placeholder that fills a small floating-point result of uncomputed inputs.
_FILL: Final = 1.0
#: The placeholder in 16 bits. The squares of 65,535 such values add up to less than float16's largest number, so a loss
#: scaler of the program's own sees no overflow. The square itself is still a normal number of float16.
_FILL_OF_HALF: Final = 2.0**-7
_HALF: Final = (torch.float16, torch.bfloat16)
#: The share of flags that counts as set where the flags were not computed.
_SHARE_SET: Final = 0.5
#: An operator without a meta kernel runs on filled inputs of up to this many elements. Beyond that its error reaches
#: the program.
_MOST_FILLED: Final = 2**28
#: Beginnings of operators' names. Their results have no values from `_LARGE` elements on, even if the inputs come from
#: the host.
_RANDOM: Final = (
    "empty", "rand", "normal", "uniform", "new_empty", "bernoulli", "dropout", "native_dropout", "multinomial",
)  # fmt: skip
_HEAVY: Final = (
    "mm", "addmm", "bmm", "baddbmm", "convolution", "linalg", "cdist", "_scaled_dot", "einsum", "fft", "_fft",
)  # fmt: skip
_INITIALISES: Final = ("aten::normal_", "aten::uniform_")
_MASKED: Final = ("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")
_SIZED_BY_VALUES: Final = ("nonzero", "masked_select")
_MASK_DTYPES: Final = (torch.bool, torch.uint8)

#: Dispatch keys of what runs on the CPU.
_ON_CPU: Final = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
#: Types in which a GPU computes, and in which the CPU lacks some kernels.
_NARROW: Final = frozenset(
    dtype
    for name in (
        "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
        "float4_e2m1fn_x2", "complex32", "uint16", "uint32", "uint64",
    )
    if (dtype := getattr(torch, name, None)) is not None
)  # fmt: skip

_WITHOUT_INFINITIES: Final = tuple(
    dtype for name in ("float4_e2m1fn_x2",) if (dtype := getattr(torch, name, None)) is not None
)

#: Memory whose values are assumed.
_assumed = Marks()


def is_assumed(tensor: Tensor) -> bool:
    """Whether a tensor inside a virtual one has no values, or assumed ones."""
    return tensor.is_meta or tensor in _assumed


def skips_initialising(overload: Overload, args: Sequence[Any]) -> bool:
    """Whether an operator on the host only fills a large weight with random numbers, which takes seconds."""
    return (
        overload.name in _INITIALISES and isinstance(args[0], torch.nn.Parameter) and args[0].numel() >= _LARGE_WEIGHT
    )


def run(
    overload: Overload,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[Tensor],
) -> Any:
    """Run one operator on the tensors inside virtual ones.

    Args:
        overload: the operator.
        function: what runs in its place on the CPU; mostly itself.
        args: its positional arguments, with the inner tensors in place of virtual ones.
        kwargs: its keyword arguments, likewise.
        tensors: the tensors among both.

    Raises:
        NotImplementedError: it has no meta kernel, and its inputs are too large to be filled.
    """
    name = overload.packet
    by_mask = name in _MASKED or name in _SIZED_BY_VALUES
    if any(tensor.is_meta for tensor in tensors) or (by_mask and _depends_on_assumed(overload, args, tensors)):
        return _run_uncomputed(overload, function, args, kwargs)
    try:
        result = _run_computed(overload, function, args, kwargs)
    except NotImplementedError:
        if _has_cpu_kernel(overload) and not any(map(_is_narrow, tensors)):
            raise
        return _run_unknown(overload, function, args, kwargs)
    if _assumed and any(map(is_assumed, tensors)):
        if name == "_local_scalar_dense" or _depends_on_assumed(overload, args, tensors):
            _record(overload, "an assumed value is read")
        written = _written(overload, args, kwargs)
        arguments = [*args, *kwargs.values()]
        for tensor in (*written, *tensors_of((result,))):
            _bound(_assumed.add(tensor), arguments, written)
    return result


def _bound(tensor: Tensor, arguments: Sequence[Any], written: Sequence[Tensor]) -> None:
    """Replace infinities and NaN in an assumed result if its inputs are finite: they come from the placeholders."""
    if not tensor.is_floating_point() or tensor.is_meta or not _is_dense(tensor):
        return
    finite = _finite(tensor)
    if bool(finite.all()):
        return
    numbers = [value for value in _leaves(arguments) if isinstance(value, float)]
    overwritten = set(map(id, written))
    inputs = [tensor for tensor in tensors_of(arguments) if id(tensor) not in overwritten and not tensor.is_meta]
    if all(map(math.isfinite, numbers)) and all(bool(_finite(tensor).all()) for tensor in inputs):
        wide = tensor.float() if _is_8_bit(tensor) else tensor
        tensor.copy_(wide.masked_fill(~finite, _fill_of(tensor)))


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor is neither sparse nor nested."""
    return tensor.layout is torch.strided and not tensor.is_nested


def _finite(tensor: Tensor) -> Tensor:
    """Which values are neither infinite nor NaN; of a sparse or nested tensor, which of those that it stores."""
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    elif not _is_dense(tensor):
        tensor = tensor.values()
    if tensor.dtype in _WITHOUT_INFINITIES:
        return torch.ones((), dtype=torch.bool)
    return (tensor.float() if _is_8_bit(tensor) else tensor).isfinite()


def _is_8_bit(tensor: Tensor) -> bool:
    """Whether a tensor has floats of 8 bits, which the CPU only converts."""
    return tensor.is_floating_point() and tensor.element_size() == 1


def _leaves(values: Iterable[Any]) -> Iterable[Any]:
    """The items of lists and tuples, at any depth."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(value)
        else:
            yield value


def _fill_of(tensor: Tensor) -> float:
    """The placeholder for a floating-point value of a tensor."""
    return _FILL_OF_HALF if tensor.dtype in _HALF else _FILL


def to_host(overload: Overload, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor copied to the host. If it has no values, the copy is zeros, which take no memory."""
    if is_assumed(tensor):
        _record(overload, "values that were not computed are copied to the host")
    return torch.zeros(tensor.size(), dtype=dtype or tensor.dtype) if tensor.is_meta else tensor


def assume_written(tensors: Iterable[Tensor]) -> None:
    """Mark the values of these inner tensors as assumed, since a kernel that is not followed has written to them."""
    for tensor in tensors:
        if not tensor.is_meta:
            _assumed.add(tensor.fill_(_FILL if tensor.is_floating_point() else 0))


def write_over(tensor: Tensor, other: Tensor) -> None:
    """Write the values of one inner tensor over those of another, if both have values, and whether they are assumed."""
    if tensor.is_meta or not (_is_dense(tensor) and _is_dense(other)) or tensor.shape != other.shape:
        return
    if is_assumed(other):
        _assumed.add(tensor)
    if not other.is_meta:
        tensor.copy_(other)


def _run_computed(overload: Overload, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run on values, unless shapes alone show that all results are large."""
    limit = _limit(overload, args)
    is_nested = any(tensor.is_nested for tensor in tensors_of((*args, *kwargs.values())))
    if overload.is_view or is_nested or (overload.written and _written(overload, args, kwargs)):
        return function(*args, **kwargs)
    # The product of all sizes bounds the number of elements. If the bound is too high, only the shapes are computed.
    if _elements((*args, *kwargs.values())) < limit:
        return function(*args, **kwargs)
    shapes = on_meta(overload, function, args, kwargs)
    results = tensors_of((shapes,))
    if results and all(_is_large(tensor, limit) for tensor in results):
        return shapes
    return map_tensors(lambda leaf: to_meta(leaf) if _is_large(leaf, limit) else leaf, function(*args, **kwargs))


def _has_cpu_kernel(overload: Overload) -> bool:
    return overload.namespace == "aten" and any(has_kernel(overload.func.name(), key) for key in _ON_CPU)


def _is_narrow(tensor: Tensor) -> bool:
    """Whether a tensor has a type for which the CPU lacks some kernels."""
    return tensor.dtype in _NARROW


def _run_unknown(overload: Overload, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator that has no kernel on the CPU. If its shapes are not known either, guess them, with a remark."""
    try:
        return _run_uncomputed(overload, function, args, kwargs)
    except NotImplementedError:
        if Syncs.active is not None:
            reason = "PyTorch says the shape of its result on CUDA only: taken for that of its first tensor"
            Syncs.active.cannot_judge(overload.name, reason)
        return _guessed(overload, args, kwargs)


def _guessed(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Results without values, in the shape of the first tensor that an operator is given."""
    bound = overload.bind(args, kwargs)
    dtype = next((value for value in bound.values() if isinstance(value, torch.dtype)), None)
    first = next((tensor for tensor in tensors_of(bound.values())), None)

    def result(kind: str) -> Any:
        if "Tensor" not in kind:
            return {"int": 0, "float": 0.0, "bool": False}.get(kind)
        if first is None or kind.startswith("Optional"):
            return None
        like = torch.empty_strided(first.size(), first.stride(), dtype=dtype or first.dtype, device=META)
        return [_settled(like)] if kind.startswith("List") else _settled(like)

    results = tuple(result(str(returned.type)) for returned in overload.func._schema.returns)
    return results if len(results) != 1 else results[0]


def _run_uncomputed(overload: Overload, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run where an input has no values, or where a mask is assumed."""
    name = overload.packet
    written = _written(overload, args, kwargs)
    if name == "_local_scalar_dense":
        _record(overload, "a value that was not computed is read")
        if args[0].is_floating_point():
            return _fill_of(args[0])
        if args[0].dtype is torch.bool:
            return False
        return 0
    for tensor in written:
        _assumed.add(tensor)
    if written and not overload.given_back:
        return None  # such as a step of an optimizer: shapes stay as they are
    if name in _SIZED_BY_VALUES:
        return _settled(_selected(overload, name, args))
    if name in _MASKED:
        args = (args[0], [part for index in args[1] for part in _as_indices(overload, index)], *args[2:])
    tensors = tensors_of((*args, *kwargs.values()))
    dense = all(map(_is_dense, tensors))  # others have values
    result = on_meta(overload, function, args, kwargs) if dense else None
    if result is None or not all(map(_is_dense, tensors_of((result,)))):
        result = _run_filled(overload, function, args, kwargs)
    if name in ("resize_", "set_") or "out" in kwargs:
        for tensor, now in zip(written, tensors_of((result,)), strict=False):
            if tensor.shape != now.shape:
                _assumed.add(tensor.resize_(now.shape).fill_(_fill_of(tensor) if tensor.is_floating_point() else 0))
    storages = {tensor.untyped_storage()._cdata for tensor in tensors if tensor.layout is torch.strided}
    # Code that checks its inputs asks whether all of them are valid (true), or whether any is invalid (false).
    flag = name in ("all", "_is_all_true")
    return map_tensors(lambda leaf: _settled(leaf, storages, flag=flag), result)


def _settled(leaf: Any, storages: Collection[int] = (), *, flag: bool = False) -> Any:
    """A result of uncomputed inputs: without values if it is large, else filled and marked as assumed."""
    if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided:
        return leaf
    if not leaf.is_meta:
        return to_meta(leaf) if _is_large(leaf) else _assumed.add(leaf)
    if leaf.numel() >= _LARGE or leaf.untyped_storage()._cdata in storages:
        return leaf
    values = torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype)
    return _assumed.add(values.fill_(_fill_of(leaf) if leaf.is_floating_point() else flag))


def _record(overload: Overload, reason: str) -> None:
    if Syncs.active is not None:
        Syncs.active.assume(overload.name, reason)


def _limit(overload: Overload, args: Sequence[Any]) -> int:
    """The number of elements from which on a result of computed inputs has no values."""
    is_weight = overload.copied == 0 and isinstance(args[0], torch.nn.Parameter)
    return _LARGE if is_weight or _loses_values(overload.packet) else _LARGE_DATA


@cache
def _loses_values(packet: str) -> bool:
    return packet.startswith((*_RANDOM, *_HEAVY))


def _is_large(tensor: Any, limit: int = _LARGE) -> bool:
    return (
        isinstance(tensor, Tensor)
        and tensor.numel() >= limit
        and (tensor.is_floating_point() or tensor.is_complex())
        and _is_dense(tensor)
    )


def _depends_on_assumed(overload: Overload, args: Sequence[Any], tensors: Sequence[Tensor]) -> bool:
    if overload.packet in _MASKED:
        return any(is_assumed(index) for index in args[1] if index is not None and index.dtype in _MASK_DTYPES)
    return overload.data_dependent and any(map(is_assumed, tensors))


def _written(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that an operator writes to."""
    written = overload.written
    return tensors_of([args[position] if position < len(args) else kwargs.get(name) for position, name in written])


def _elements(values: Iterable[Any]) -> int:
    """The product of all sizes."""
    bound = 1
    for value in values:
        if isinstance(value, Tensor):
            bound *= value.numel() or 1
        elif isinstance(value, list | tuple):
            bound *= _elements(value)
        elif isinstance(value, int | float) and math.isfinite(value):
            bound *= int(abs(value)) or 1
    return bound


def _as_indices(overload: Overload, index: Tensor | None) -> Sequence[Tensor | None]:
    """The index itself, or for a mask the indices of the elements that it selects."""
    return [index] if index is None or index.dtype not in _MASK_DTYPES else _places(overload, index)


def _places(overload: Overload, flags: Tensor) -> Sequence[Tensor]:
    """The indices of the set flags, for each dimension; arbitrary ones if the flags were not computed."""
    if not is_assumed(flags):
        return flags.nonzero().unbind(1)
    count = _count(overload, flags)
    if flags.is_meta:
        return [torch.empty(count, dtype=torch.int64, device=META) for _ in range(flags.dim())]
    return torch.ones_like(flags).nonzero()[:count].unbind(1)


def _count(overload: Overload, flags: Tensor) -> int:
    """The number of set flags; half of all flags if they were not computed."""
    if not is_assumed(flags):
        return int(flags.count_nonzero())
    _record(overload, "how many elements are selected was not computed")
    return round(_SHARE_SET * flags.numel())


def _selected(overload: Overload, name: str, args: Sequence[Any]) -> Tensor:
    """The result of `nonzero` or `masked_select` on values or a mask that were not computed."""
    if name == "nonzero":
        places = _places(overload, args[0])
        return torch.stack(tuple(places), 1) if places else torch.empty(0, 0, dtype=torch.int64)
    values, mask = torch.broadcast_tensors(*args)  # type: ignore[no-untyped-call]
    return torch.empty(_count(overload, mask), dtype=values.dtype, device=META)


def _run_filled(overload: Overload, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator on assumed values, for its shapes: it has no meta kernel, or its sizes depend on the data."""
    tensors = tensors_of((*args, *kwargs.values()))
    total = sum(tensor.numel() for tensor in tensors)
    if total > _MOST_FILLED:
        raise NotImplementedError(f"{overload.func.name()} has no meta kernel, and its inputs have {total} elements")
    if overload.data_dependent:
        _record(overload, "a size was not computed")

    def computed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if not leaf.is_meta:
            return leaf.clone()
        values = torch.zeros(leaf.size(), dtype=leaf.dtype)  # take no memory until written
        return values.fill_(_fill_of(leaf)) if leaf.is_floating_point() else values

    return function(
        *map_tensors(computed, list(args)), **{name: map_tensors(computed, value) for name, value in kwargs.items()}
    )
