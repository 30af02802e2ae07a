"""Shapes of an operator's results by PyTorch's meta kernels. Many are Python and slow, so their results are kept."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.operators import Overload
from steptrace.predict.tensor import map_tensors

META: Final = torch.device("meta")
#: Calls that are kept; then all are forgotten.
_MOST_KEPT: Final = 10_000
#: By call, what makes its results anew.
_kept: dict[Hashable, tuple[Any, ...]] = {}


def to_meta(value: Any) -> Any:
    """A strided tensor's shape, strides and type on the meta device; anything else as it is."""
    if not isinstance(value, Tensor) or value.is_meta:
        return value
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=META)


def on_meta(overload: Overload, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Results without values of `function`, which runs in place of an operator; None without a meta kernel."""
    key = _key(overload, args, kwargs)
    if (recipe := _kept.get(key)) is not None:
        return _make(recipe)
    named = {name: map_tensors(to_meta, value) for name, value in kwargs.items()}
    if "device" in named:
        named["device"] = META
    if named.get("generator") is not None:
        named["generator"] = None
    try:
        results = function(*map_tensors(to_meta, list(args)), **named)
    except (NotImplementedError, RuntimeError, TypeError):
        return None  # an error of the program's comes again on values
    if key is not None:
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        recipe = _recipe(results, args)
        if recipe is not None:
            _kept[key] = recipe
    return results


def _key(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable | None:
    """What the results of a call depend on; None if it writes to its arguments or may give one of them back."""
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


def _recipe(results: Any, args: Sequence[Any]) -> tuple[Any, ...] | None:
    """What makes results like these again; None for views, shared memory, lists in lists and tensors with values."""
    several = isinstance(results, tuple | list)
    leaves = list(results) if several else [results]
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    plain = all(tensor.is_meta and tensor.layout is torch.strided for tensor in tensors)
    if not plain or any(isinstance(leaf, tuple | list) for leaf in leaves):
        return None
    given: list[Any] = []
    map_tensors(given.append, list(args))
    given = [value for value in given if isinstance(value, Tensor)]
    storages = {tensor.untyped_storage()._cdata for tensor in (*tensors, *given)}
    if len(storages) < len(tensors) + len({tensor.untyped_storage()._cdata for tensor in given}):
        return None
    specs = [(leaf.size(), leaf.stride(), leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return type(results) if several else None, specs


def _make(recipe: tuple[Any, ...]) -> Any:
    kind, specs = recipe
    leaves = [
        torch.empty_strided(spec[0], spec[1], dtype=spec[2], device=META) if isinstance(spec, tuple) else spec
        for spec in specs
    ]
    return leaves[0] if kind is None else kind(leaves)
