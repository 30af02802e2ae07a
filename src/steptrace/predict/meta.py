"""Shapes of an operator's results by PyTorch's meta kernels. Many are Python and slow, so their results are kept."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.operators import Overload, tensors_of
from steptrace.predict.pytorch import storage_key
from steptrace.predict.tensor import map_tensors

META: Final = torch.device("meta")
#: Calls that are kept; then all are forgotten.
_MOST_KEPT: Final = 10_000
#: Results of the same form, by call.
_kept: dict[Hashable, Any] = {}


def to_meta(value: Any) -> Any:
    """A strided tensor's shape, strides and type on the meta device; anything else as it is."""
    if not isinstance(value, Tensor) or value.is_meta:
        return value
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=META)


def on_meta(overload: Overload, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Results without values of `function`, which runs in place of an operator; None without a meta kernel."""
    key = _key(overload, args, kwargs)
    if (kept := _kept.get(key)) is not None:
        return map_tensors(_alike, kept)
    named = {name: map_tensors(to_meta, value) for name, value in kwargs.items()}
    if "device" in named:
        named["device"] = META
    if named.get("generator") is not None:
        named["generator"] = None
    try:
        results = function(*map_tensors(to_meta, list(args)), **named)
    except Exception:  # meta kernels that are written in Python raise whatever their checks do
        return None  # an error of the program's comes again on values
    if key is not None and _is_new(results, args):
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[key] = map_tensors(_alike, results)
    return results


def _key(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable | None:
    """The facts on which the results of a call depend; None if it writes to its arguments or may return one of them."""
    if overload.aliases or overload.namespace != "aten":
        return None
    try:
        key = (
            overload,
            torch.get_default_dtype(),
            *map(_described, args),
            *((n, _described(v)) for n, v in kwargs.items()),
        )
        hash(key)
    except TypeError:
        return None
    return key


def _described(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_complex():
            raise TypeError("a tensor with more to it than shape, strides and type")
        return value.is_meta, value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return type(value), *map(_described, value)
    return type(value), value


def _is_new(results: Any, args: Sequence[Any]) -> bool:
    """Whether results are not views, and share no memory with arguments or with each other."""
    tensors = tensors_of((results,))
    if not all(tensor.is_meta and tensor.layout is torch.strided for tensor in tensors):
        return False
    storages = {storage_key(tensor.untyped_storage()) for tensor in tensors}
    return len(storages) == len(tensors) and storages.isdisjoint(
        storage_key(tensor.untyped_storage()) for tensor in tensors_of(args)
    )


def _alike(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=META)
