"""Records the operators of a step with the shapes of their tensors, for estimates."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import torch

from steptrace.documents.operators import OperatorCalls, TensorSpec
from steptrace.engine.call_site import Site, trace_file_name
from steptrace.predict.overload import Overload, tensors_of

#: Shape, strides and type of a tensor.
_Spec = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
#: What calls have in common that are counted together: operator, inputs, outputs, operations, phase, file, line.
_Key = tuple[Overload, tuple[_Spec, ...], tuple[_Spec, ...], int, str, str | None, int | None]

#: Operators whose operations follow from their tensors' shapes; to count them takes longer than all the rest.
_FLOP_OF_SHAPES: Final = {"mm", "addmm", "bmm", "baddbmm"}


#: What a sparse tensor consists of.
_COMPRESSED_ROWS: Final = ("crow_indices", "col_indices", "values")
_COMPRESSED_COLUMNS: Final = ("ccol_indices", "row_indices", "values")
_PARTS: Final = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _COMPRESSED_ROWS,
    torch.sparse_bsr: _COMPRESSED_ROWS,
    torch.sparse_csc: _COMPRESSED_COLUMNS,
    torch.sparse_bsc: _COMPRESSED_COLUMNS,
}


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
        self._calls[overload, inputs, outputs, flop, phase, file, line] += 1

    def snapshot(self) -> "OperatorLog":
        """The calls so far, to which later ones are not added."""
        taken = OperatorLog()
        taken._calls = self._calls.copy()
        return taken

    def clear(self) -> None:
        """Forget all calls."""
        self._calls.clear()

    def calls(self) -> tuple[OperatorCalls, ...]:
        """All calls so far, in the order of their first occurrence; files as traces name them."""
        names: dict[str | None, str | None] = {None: None}
        calls = []
        for (overload, inputs, outputs, flop, phase, file, line), count in self._calls.items():
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
                )
            )
        return tuple(calls)


def _specs_of(tensors: Iterable[torch.Tensor]) -> Iterator[_Spec]:
    """A sparse tensor has no strides; its indices and values follow it."""
    for tensor in tensors:
        if tensor.layout is torch.strided:
            yield tensor.shape, tensor.stride(), tensor.dtype
        else:
            yield tensor.shape, (), tensor.dtype
            for part in _PARTS.get(tensor.layout, ()):
                yield from _specs_of((getattr(tensor, part)(),))


def _written(spec: _Spec) -> TensorSpec:
    shape, strides, dtype = spec
    return TensorSpec(shape=tuple(shape), strides=tuple(strides), dtype=str(dtype).removeprefix("torch."))
