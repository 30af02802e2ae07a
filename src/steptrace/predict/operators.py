"""Records the operators of a step with the shapes of their tensors, for estimates."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from steptrace.documents.operators import OperatorCalls, TensorSpec
from steptrace.engine.call_site import trace_file_name

_Spec = tuple[tuple[int, ...], tuple[int, ...], str]


class _Key(NamedTuple):
    """What calls have in common that are counted together."""

    func: Any
    inputs: tuple[_Spec, ...]
    outputs: tuple[_Spec, ...]
    flop: int
    phase: str
    file: str | None
    line: int | None


class OperatorLog:
    """Operators on the virtual GPU, alike calls counted together."""

    def __init__(self) -> None:
        self._calls: Counter[_Key] = Counter()

    def add(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, phase: str, place: Any
    ) -> None:
        """Count one call; `place` is the program's line, or None."""
        formula = flop_registry.get(func.overloadpacket)
        flop = 0 if formula is None else int(formula(*args, **kwargs, out_val=result))
        file, line = (None, None) if place is None else (place.file, place.line)
        inputs = _specs([*args, *kwargs.values()])
        self._calls[_Key(func, inputs, _specs([result]), flop, phase, file, line)] += 1

    def clear(self) -> None:
        """Forget all calls."""
        self._calls.clear()

    def calls(self) -> tuple[OperatorCalls, ...]:
        """All calls so far, in the order of their first occurrence; files as traces name them."""
        files = {key.file: None if key.file is None else trace_file_name(key.file) for key in self._calls}
        return tuple(
            OperatorCalls(
                name=str(key.func),
                inputs=tuple(_spec(*spec) for spec in key.inputs),
                outputs=tuple(_spec(*spec) for spec in key.outputs),
                is_view=key.func.is_view,
                flop=key.flop,
                calls=count,
                phase=key.phase,
                file=files[key.file],
                line=key.line,
            )
            for key, count in self._calls.items()
        )


def _spec(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> TensorSpec:
    return TensorSpec(shape=shape, strides=strides, dtype=dtype)


def _specs(values: Sequence[Any]) -> tuple[_Spec, ...]:
    specs: list[_Spec] = []
    for value in values:
        if isinstance(value, list | tuple):
            specs += _specs(value)
        elif isinstance(inner := getattr(value, "_inner", None), Tensor):
            strides = tuple(inner.stride()) if inner.layout is torch.strided else ()
            specs.append((tuple(inner.shape), strides, str(inner.dtype).removeprefix("torch.")))
    return tuple(specs)
