"""Records the operators of a step with the shapes of their tensors, for estimates."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.engine.frames import Site, trace_file_name
from steptrace.estimate.launches import EFFICIENT_ATTENTION, INDEXING, SINCE_2_14
from steptrace.estimate.lists import is_of_lists
from steptrace.predict.overload import SPARSE_PARTS, Overload, tensors_of

#: Shape, strides and type of a tensor.
_Spec = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
_Arguments = tuple[tuple[str, Any], ...]
#: What calls have in common that are counted together: operator, inputs, outputs, the host's tensor, arguments,
#: operations, phase, file, line.
_Key = tuple[Overload, tuple[_Spec, ...], tuple[_Spec, ...], _Spec | None, _Arguments, int, str, str | None, int | None]

#: Operators whose operations follow from their tensors' shapes; to count them takes longer than all the rest.
_FLOP_OF_SHAPES: Final = {"mm", "addmm", "bmm", "baddbmm"}
_OF_4_KB: Final = "arguments_of_4_kb"


class OperatorLog:
    """Operators on the virtual GPU, alike calls counted together."""

    def __init__(self) -> None:
        self._calls: Counter[_Key] = Counter()
        self._flop: dict[tuple[Overload, tuple[_Spec, ...], tuple[_Spec, ...]], int] = {}

    def add(
        self,
        overload: Overload,
        call: tuple[Any, Any],
        virtual: Sequence[Any],
        result: Any,
        phase: str,
        site: Site | None,
    ) -> None:
        """Count one call, as `Syncs.ran` describes it; `site` is the program's line, or None."""
        args, kwargs = call
        host = None
        if overload.copied is not None:
            ends = (args[0], result if overload.copied == 0 else args[1])
            host = next(_specs_of(end for end in ends if not hasattr(end, "_inner")), None)
            if host is None and overload.copied == 1 and _is_same_memory(*(end._inner for end in ends)):
                return
        outputs = tuple(_specs_of(tensor._inner for tensor in tensors_of((result,)) if hasattr(tensor, "_inner")))
        file, line = (None, None) if site is None else (site.file, site.line)
        inputs = tuple(_specs_of(tensor._inner for tensor in virtual))
        flop = 0
        if overload.flop is not None:
            shapes = overload, inputs, outputs
            if overload.packet in _FLOP_OF_SHAPES and shapes in self._flop:
                flop = self._flop[shapes]
            else:
                flop = self._flop[shapes] = int(overload.flop(*args, **kwargs, out_val=result))
        arguments: _Arguments = ()
        if overload.recorded:
            bound = overload.bind(args, kwargs)
            arguments = tuple((name, _argument(bound[name])) for name in overload.recorded)
        if len(inputs) > len(virtual) and (sparse := [tensor._inner for tensor in virtual if _is_coordinates(tensor)]):
            arguments += (("is_coalesced", all(tensor.is_coalesced() for tensor in sparse)),)
        if overload.packet in INDEXING:
            arguments += _of_host(args)
        self._calls[overload, inputs, outputs, host, arguments, flop, phase, file, line] += 1

    def clear(self) -> None:
        """Forget all calls."""
        self._calls.clear()

    def calls(self) -> tuple[OperatorCalls, ...]:
        """All calls so far, in the order of their first occurrence; files as traces name them."""
        names: dict[str | None, str | None] = {None: None}
        calls = []
        for (overload, inputs, outputs, host, arguments, flop, phase, file, line), count in self._calls.items():
            if file is not None and file not in names:
                names[file] = trace_file_name(file)
            calls.append(
                OperatorCalls(
                    name=str(overload.func),
                    inputs=tuple(map(_written, inputs)),
                    outputs=tuple(map(_written, outputs)),
                    is_view=overload.is_view,
                    flop=flop,
                    calls=count,
                    phase=phase,
                    file=names[file],
                    line=line,
                    host=host and _written(host),
                    arguments=dict(arguments) | _of_version(overload.packet),
                )
            )
        return tuple(calls)


def _is_coordinates(tensor: Any) -> bool:
    return tensor._inner.layout is torch.sparse_coo


def _of_host(args: Sequence[Any]) -> _Arguments:
    """How many of an indexing operator's indices lie on the host, and whether its value does."""
    indices = sum(isinstance(one, Tensor) and not hasattr(one, "_inner") for one in args[1])
    value = len(args) > 2 and not hasattr(args[2], "_inner")
    return (("host_indices", indices), ("host_value", value))


def _of_version(operator: str) -> dict[str, bool]:
    """What the launches of an operator depend on in the PyTorch that is followed."""
    if is_of_lists(operator) and _has_arguments_of_4_kb():
        return {_OF_4_KB: True}
    return {SINCE_2_14: True} if operator == EFFICIENT_ATTENTION and torch.__version__ >= "2.14" else {}


def _has_arguments_of_4_kb() -> bool:
    """Whether a launch on lists of tensors takes fewer of them than PyTorch for CUDA 13 does since 2.12.

    A build without CUDA stands for the CUDA build that is published beside it.
    """
    cuda = torch.version.cuda or "13"
    return torch.__version__ < "2.12" or int(cuda.partition(".")[0]) < 13


def _argument(value: Any) -> Any:
    """As calls are told apart by it."""
    return isinstance(value, Tensor) or (tuple(value) if isinstance(value, list) else value)


def _is_same_memory(tensor: Tensor, other: Tensor) -> bool:
    """Whether a copy of one to the other is left out, as it would change nothing; also of meta tensors.

    `Tensor.is_set_to` is not implemented for those.
    """
    if tensor.layout is not torch.strided or other.layout is not torch.strided or tensor.dtype != other.dtype:
        return False
    same_storage = tensor.untyped_storage()._cdata == other.untyped_storage()._cdata
    same_place = tensor.storage_offset() == other.storage_offset() and tensor.stride() == other.stride()
    return same_storage and same_place and tensor.shape == other.shape


def _specs_of(tensors: Iterable[Tensor]) -> Iterator[_Spec]:
    """A sparse tensor has no strides; its indices and values follow it."""
    for tensor in tensors:
        if tensor.layout is torch.strided:
            yield tensor.shape, tensor.stride(), tensor.dtype
        else:
            yield tensor.shape, (), tensor.dtype
            for part in SPARSE_PARTS.get(tensor.layout, ()):
                yield from _specs_of((getattr(tensor, part)(),))


def _written(spec: _Spec) -> TensorSpec:
    shape, strides, dtype = spec
    return TensorSpec(shape=tuple(shape), strides=tuple(strides), dtype=str(dtype).removeprefix("torch."))
