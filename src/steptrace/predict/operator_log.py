"""The log of the operators on the virtual GPU, for estimates: calls, how often, and their order with the waits."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from steptrace.documents.estimate import (
    COPIES_WAIT,
    SYNC,
    WAIT_FOR_COPIES,
    DeclaredCost,
    OperatorCalls,
    TensorSpec,
)
from steptrace.engine.frames import SourceLine, trace_file_name
from steptrace.errors import PredictError
from steptrace.estimate.kernel_classes import OWN_KERNELS
from steptrace.estimate.launches import INDEXING
from steptrace.operator_costs import OperatorCost, cost_formula
from steptrace.predict.flop import counted_flop, without_device
from steptrace.predict.memory import PINNED, is_same_memory
from steptrace.predict.operators import SPARSE_PARTS, Overload, tensors_of
from steptrace.torch_names import release_of


class OwnKernel(NamedTuple):
    """A kernel of the program's own, counted as if it were an operator."""

    func: str
    is_view: bool = False


class StreamWait(NamedTuple):
    """A wait of one stream for another, counted as if it were an operator."""

    func: str
    is_view: bool = True


#: Shape, strides and type of a tensor.
_Spec = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
_Arguments = tuple[tuple[str, Any], ...]


class _CallKey(NamedTuple):
    """Calls with the same key are counted together.

    `host` is the tensor on the host that a copy reads or writes.
    """

    overload: "Overload | OwnKernel | StreamWait"
    inputs: tuple[_Spec, ...]
    outputs: tuple[_Spec, ...]
    host: _Spec | None = None
    arguments: _Arguments = ()
    flop: int = 0
    cost: DeclaredCost | None = None
    phase: str = ""
    file: str | None = None
    line: int | None = None
    in_graph: bool = False


#: Operators whose operations follow from their tensors' shapes; to count them takes longer than all the rest.
_FLOP_OF_SHAPES: Final = {"mm", "addmm", "bmm", "baddbmm"}


#: The host never waits for a copy to the device of this size (CUDA C++ Programming Guide, asynchronous execution).
_COPIED_AT_ONCE: Final = 64 * 1024


class OperatorLog:
    """Operators on the virtual GPU, alike calls counted together, and the order of calls and syncs."""

    def __init__(self) -> None:
        self._calls: Counter[_CallKey] = Counter()
        self._places: dict[_CallKey, int] = {}
        self._queue: list[int] = []
        #: The same with calls of compiled code in place of the operators in them; the calls that it has.
        self._compiled_queue: list[int] = []
        self._compiled_calls: set[int] = set()
        #: The same with as little as can be of compiled code whose kernels are not known.
        self._fused_queue: list[int] = []
        self._flop: dict[tuple[Overload, tuple[_Spec, ...], tuple[_Spec, ...]], int] = {}
        #: Copies on other streams than the default one, since the prediction began.
        self.copies_beside = 0

    def add(  # noqa: PLR0913
        self,
        overload: Overload,
        call: tuple[Any, Any],
        virtual: Sequence[Any],
        result: Any,
        phase: str,
        site: SourceLine | None,
        compiled: tuple[int, int | None] | None = None,
        in_graph: bool = False,  # noqa: FBT001, FBT002
        *,
        other_stream: bool = False,
    ) -> None:
        """Count one call, as `Syncs.ran` describes it.

        `other_stream`: whether it is launched on another stream than the default one. `site` is the program's line, or
        None. `in_graph`: whether a CUDA graph launches it. `compiled` is None for an operator outside of compiled code.
        Inside it has two numbers: one of the call's forward or backward pass, and the one that stands for that pass in
        `compiled_queue`, which is None if its kernels are not known.
        """
        args, kwargs = call
        host = None
        if overload.copied is not None:
            ends = (args[0], result if overload.copied == 0 else args[1])
            host = next(_specs_of(end for end in ends if not hasattr(end, "_inner")), None)
        of_two = (host is None and overload.copied == 1) or overload.packet == "equal"
        if of_two and is_same_memory(*(tensor._inner for tensor in args[:2])):
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
                flop = counted_flop(overload.flop, args, kwargs, result)
                self._flop[shapes] = flop
        arguments: _Arguments = ()
        if overload.recorded:
            bound = overload.bind(args, kwargs)
            arguments = tuple((name, _argument(bound[name])) for name in overload.recorded)
        if len(inputs) > len(virtual) and (
            sparse := [tensor._inner for tensor in virtual if tensor._inner.layout is torch.sparse_coo]
        ):
            arguments += (("is_coalesced", all(tensor.is_coalesced() for tensor in sparse)),)
        if overload.packet in INDEXING:
            arguments += _of_host(args)
        if host is not None:
            arguments += self._of_copy(overload, args, result, other_stream=other_stream)
        cost = declared_cost(overload, args, kwargs)
        key = _CallKey(overload, inputs, outputs, host, arguments, flop, cost, phase, file, line, in_graph)
        self._count(key, compiled)
        if _is_staged(overload, args, kwargs):
            self.sync(1)

    def add_kernel(  # noqa: PLR0913
        self,
        name: str,
        read: Sequence[Tensor],
        written: Sequence[Tensor],
        phase: str,
        site: SourceLine | None,
        compiled: tuple[int, int | None] | None = None,
        in_graph: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        """Count the launch of a kernel of the program's own: its name, and the tensors that it reads and writes."""
        file, line = (None, None) if site is None else (site.file, site.line)
        inputs = tuple(_specs_of(tensor._inner for tensor in read))  # type: ignore[attr-defined]
        outputs = tuple(_specs_of(tensor._inner for tensor in written))  # type: ignore[attr-defined]
        kernel = OwnKernel(f"{OWN_KERNELS}.{name}")
        key = _CallKey(kernel, inputs, outputs, phase=phase, file=file, line=line, in_graph=in_graph)
        self._count(key, compiled)

    def add_wait_for_copies(self, copies: int) -> None:
        """Note that the default stream waits here for the first so many copies on other streams."""
        later = self.copies_beside - copies
        self._count(_CallKey(StreamWait(WAIT_FOR_COPIES), (), (), arguments=(("later", later),), phase="other"))

    def add_copies_wait(self) -> None:
        """Note that later copies on other streams wait for what the default stream has been given so far."""
        self._count(_CallKey(StreamWait(COPIES_WAIT), (), (), phase="other"))

    def _of_copy(self, overload: Overload, args: Sequence[Any], result: Any, *, other_stream: bool) -> _Arguments:
        """What the time of a copy between host and GPU depends on: kind of the host's memory, and stream."""
        source, target = (args[0], result) if overload.copied == 0 else (args[1], args[0])
        of_host = target if hasattr(source, "_inner") else source
        arguments: _Arguments = () if of_host in PINNED else (("pageable", True),)
        if other_stream:
            self.copies_beside += 1
            arguments += (("other_stream", True),)
        return arguments

    def _count(self, key: _CallKey, compiled: tuple[int, int | None] | None = None) -> None:
        self._calls[key] += 1
        place = self._places.setdefault(key, len(self._places))
        self._queue.append(place)
        if compiled is None:
            self._compiled_queue.append(place)
            self._fused_queue.append(place)
        elif compiled[1] is None:
            self._compiled_queue.append(place)
            if key.flop or key.cost is not None or isinstance(key.overload, OwnKernel):  # it is fused with nothing
                self._fused_queue.append(place)
        elif compiled[0] not in self._compiled_calls:
            self._compiled_calls.add(compiled[0])
            self._compiled_queue.append(compiled[1])
            self._fused_queue.append(compiled[1])

    def sync(self, count: int) -> None:
        """Note that the host waits here `count` times for all calls so far."""
        self._queue += [SYNC] * count
        self._compiled_queue += [SYNC] * count
        self._fused_queue += [SYNC] * count

    def clear(self) -> None:
        """Forget all calls."""
        self._calls.clear()
        self._places.clear()
        self._queue.clear()
        self._compiled_queue.clear()
        self._fused_queue.clear()
        self._compiled_calls.clear()

    def queue(self) -> tuple[int, ...]:
        """Calls and syncs in their order: positions in `calls()`, and `SYNC`."""
        return tuple(self._queue)

    def compiled_queue(self) -> tuple[int, ...]:
        """The same with calls of compiled code, see `steptrace.documents.compiled`."""
        return tuple(self._compiled_queue)

    def fused_queue(self) -> tuple[int, ...]:
        """The same with nothing but products, convolutions and attention of compiled code without known kernels."""
        return tuple(self._fused_queue)

    def calls(self) -> tuple[OperatorCalls, ...]:
        """All calls so far, in the order of their first occurrence; files as traces name them."""
        names: dict[str | None, str | None] = {None: None}
        calls = []
        for key, count in self._calls.items():
            if key.file is not None and key.file not in names:
                names[key.file] = trace_file_name(key.file)
            calls.append(
                OperatorCalls(
                    name=str(key.overload.func),
                    inputs=tuple(map(_written, key.inputs)),
                    outputs=tuple(map(_written, key.outputs)),
                    is_view=key.overload.is_view,
                    flop=key.flop,
                    calls=count,
                    phase=key.phase,
                    file=names[key.file],
                    line=key.line,
                    host=key.host and _written(key.host),
                    arguments=dict(key.arguments),
                    torch=release_of(torch.__version__),
                    cuda=_cuda(),
                    cost=key.cost,
                    in_graph=key.in_graph,
                )
            )
        return tuple(calls)


def declared_cost(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> DeclaredCost | None:
    """The cost of one call by the formula that is declared for its operator; None without one.

    The formula gets the tensors on the CPU, so that a value that it reads is no sync of the program.

    Raises:
        PredictError: the formula fails, or returns something else.
    """
    formula = None if overload.namespace == "aten" else cost_formula(overload.name)
    if formula is None:
        return None
    positional, named = without_device((list(args), dict(kwargs)))
    try:
        cost = formula(*positional, **named)
    except Exception as error:
        raise PredictError(
            f"the declared cost of {overload.name} cannot be computed ({error!r})",
            where=f"the function given to steptrace.operator_cost({overload.name!r})",
            expected="an OperatorCost for these arguments",
        ) from error
    if not isinstance(cost, OperatorCost):
        raise PredictError(
            f"the declared cost of {overload.name} is {cost!r}",
            where=f"the function given to steptrace.operator_cost({overload.name!r})",
            expected="an OperatorCost",
        )
    return DeclaredCost(flop=cost.flop, bytes=cost.bytes, launches=cost.launches, arithmetic=cost.arithmetic)


def tensor_specs(tensors: Iterable[Tensor]) -> tuple[TensorSpec, ...]:
    """The shapes, strides and types of tensors, and of the parts of sparse tensors."""
    return tuple(map(_written, _specs_of(tensors)))


def _is_staged(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the driver copies a call's data through a buffer of its own although PyTorch does not wait for it.

    It does so for memory that is not pinned. The call may then wait for the stream, and returns when the last piece is
    in the buffer (CUDA driver API, API synchronization behavior), so an estimate takes it for a wait.
    """
    if overload.copied is None:
        return False
    source = args[overload.copied]
    if hasattr(source, "_inner") or source in PINNED or source.numel() * source.element_size() <= _COPIED_AT_ONCE:
        return False
    return bool(overload.bind(args, kwargs).get("non_blocking"))


def _of_host(args: Sequence[Any]) -> _Arguments:
    """How many of an indexing operator's indices lie on the host, and whether its value does."""
    indices = sum(isinstance(index, Tensor) and not hasattr(index, "_inner") for index in args[1])
    value = len(args) > 2 and not hasattr(args[2], "_inner")
    return (("host_indices", indices), ("host_value", value))


def _cuda() -> int:
    """The major version of CUDA that PyTorch was built with.

    A build without CUDA counts as the build for CUDA 13 of the same release.
    """
    return int((torch.version.cuda or "13").partition(".")[0])


def _argument(value: Any) -> Any:
    """The form of an argument in the key of a call."""
    return isinstance(value, Tensor) or (tuple(value) if isinstance(value, list) else value)


def _specs_of(tensors: Iterable[Tensor]) -> Iterator[_Spec]:
    """A sparse tensor has no strides; its indices and values follow it. A nested one counts as its memory."""
    for tensor in tensors:
        if tensor.is_nested:
            yield (tensor.numel(),), (1,), tensor.dtype
        elif tensor.layout is torch.strided:
            yield tensor.shape, tensor.stride(), tensor.dtype
        else:
            yield tensor.shape, (), tensor.dtype
            for part in SPARSE_PARTS.get(tensor.layout, ()):
                yield from _specs_of((getattr(tensor, part)(),))


def _written(spec: _Spec) -> TensorSpec:
    shape, strides, dtype = spec
    return TensorSpec(shape=tuple(shape), strides=tuple(strides), dtype=str(dtype).removeprefix("torch."))
