"""An operator: what all its calls have in common, read from its schema once, and the log of its calls for estimates."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from steptrace.documents.estimate import SYNC, DeclaredCost, OperatorCalls, TensorSpec
from steptrace.engine.frames import SourceLine, trace_file_name
from steptrace.errors import PredictError
from steptrace.estimate.kernel_classes import OPERATORS, OWN_KERNELS
from steptrace.estimate.launches import INDEXING
from steptrace.operator_costs import OperatorCost, cost_formula
from steptrace.predict.pytorch import has_kernel, overload_name, storage_key
from steptrace.torch_names import release_of

_COMPOSITE: Final = "CompositeImplicitAutograd"
_DATA_DEPENDENT: Final = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
#: Operators whose second argument, the indices, may lie on the host.
_INDEX: Final = re.compile(r"_?(unsafe_)?index(_put)?(_impl)?_?")
#: The types in which operators nest tensors. A tuple, since a union of types would be made anew at each check.
_NESTED: Final = (list, tuple)
#: Operators that CUDA has a kernel of, and that PyTorch composes of others elsewhere.
FUSED: Final = ("_fused_rms_norm", "mish_backward", "silu_backward")
#: Operations of a recurrent layer per value of its matrices and row of its input, which PyTorch does not count.
_OF_RECURRENT: Final = {"_cudnn_rnn": 2, "_cudnn_rnn_backward": 4}
#: Dimensions of a tensor with one matrix for each group.
_WITH_GROUPS: Final = 3
_ROWS: Final = ("crow_indices", "col_indices", "values")
_COLUMNS: Final = ("ccol_indices", "row_indices", "values")
#: By layout, the functions that return the tensors of which a sparse tensor consists.
SPARSE_PARTS: Final = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _ROWS,
    torch.sparse_bsr: _ROWS,
    torch.sparse_csc: _COLUMNS,
    torch.sparse_bsc: _COLUMNS,
}
#: Which of its arguments an operator copies.
_COPIES: Final = {"aten::_to_copy": 0, "aten::copy_": 1}


class Overload:
    """One overload of an operator.

    Attributes:
        func: the overload itself.
        name: the operator's name with its namespace ("aten::mm"); `packet` is the name without it.
        aliases: whether results may be arguments, or lie in their memory.
        is_view: whether its results lie in the memory of its arguments.
        is_composite: whether it is made of other operators.
        is_index: whether its second argument is a list of indices.
        takes_device: whether it can name a device.
        data_dependent: whether its results, or their sizes, depend on values.
        copied: the position of the argument that it copies; None if it does something else.
        names: the names of its arguments; `defaults` has their default values by name.
        written: position and name of each argument that it writes to.
        reshapes: whether it may change the shape of such an argument.
        given_back: for each result, the name of the argument that it is; None for a new tensor.
        flop: the formula for its floating-point operations; None without a formula.
        recorded: names of the arguments on which its launches depend.
    """

    __slots__ = (
        "aliases", "copied", "data_dependent", "defaults", "flop", "func", "given_back", "is_composite", "is_index",
        "is_mutable", "is_view", "name", "names", "namespace", "packet", "recorded", "reshapes", "takes_device",
        "written",
    )  # fmt: skip

    def __init__(self, func: Any) -> None:
        schema = func._schema
        arguments = schema.arguments
        self.func = func
        self.namespace = func.namespace
        self.name = str(schema.name)
        self.packet = self.name.partition("::")[2]
        self.is_view, self.is_mutable = bool(func.is_view), bool(schema.is_mutable)
        self.aliases = self.is_view or any(argument.alias_info is not None for argument in arguments)
        composed = has_kernel(func.name(), _COMPOSITE)
        self.is_composite = composed and self.packet not in FUSED
        self.is_index = _INDEX.fullmatch(self.packet) is not None
        self.takes_device = any("Device" in str(argument.type) for argument in arguments)
        self.data_dependent = bool(_DATA_DEPENDENT & set(func.tags))
        self.copied = _COPIES.get(self.name) if overload_name(func) == "default" else None
        self.names = tuple(argument.name for argument in arguments)
        self.defaults = {
            argument.name: argument.default_value for argument in arguments if argument.has_default_value()
        }
        writes = [
            (position, argument)
            for position, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.written = tuple((position, argument.name) for position, argument in writes)
        # All other mutable operators of PyTorch write into their arguments without changing their shapes.
        self.reshapes = bool(writes) and (
            self.namespace != "aten"
            or torch.Tag.inplace_view in func.tags
            or any(argument.is_out for _, argument in writes)
            or self.packet.startswith(("resize", "set_", "_fused_moving_avg_obs"))
        )
        by_alias = {alias: argument.name for _, argument in writes for alias in argument.alias_info.before_set}
        self.given_back = tuple(
            next((by_alias[alias] for alias in aliases if alias in by_alias), None)
            for aliases in (() if r.alias_info is None else r.alias_info.before_set for r in schema.returns)
        )
        self.flop = flop_registry.get(func.overloadpacket)
        if self.packet in _OF_RECURRENT:
            self.flop = partial(_flop_of_layers, _OF_RECURRENT[self.packet])
        elif self.packet in _FLOP:
            self.flop = _FLOP[self.packet]
        self.recorded = tuple(OPERATORS["arguments"].get(self.packet, ())) if self.namespace == "aten" else ()

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by the schema's names, with its defaults."""
        return {**self.defaults, **dict(zip(self.names, args, strict=False)), **kwargs}


def _flop_of_layers(each: int, input: Tensor, weights: Sequence[Tensor], *_: Any, **__: Any) -> int:
    rows = input.numel() // input.shape[-1]
    return each * rows * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _flop_of_convolution_backward(gradient: Tensor, images: Tensor, weight: Tensor, *more: Any, **_: Any) -> int:
    """Each of the two gradients multiplies as often as the forward pass.

    PyTorch's own formula counts the gradient of the weight of a grouped convolution `groups` times.
    """
    transposed, computed = bool(more[4]), more[7]
    positions = math.prod((images if transposed else gradient).shape[2:])
    forward: int = 2 * images.shape[0] * positions * math.prod(weight.shape)
    return forward * (bool(computed[0]) + bool(computed[1]))


def _flop_of_product(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    return 2 * a.numel() * b.shape[-1]


def _flop_of_groups(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    """A product for each group: rows, columns or the terms of the sums are divided among the groups, unless both sides
    have a dimension for them.
    """
    groups = a.shape[0] if a.dim() == b.dim() == _WITH_GROUPS else 1
    return int(2 * groups * math.prod(a.shape[-2:]) * b.shape[-1])


def _flop_of_packed_product(columns: int, a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    """FLOP of a product with packed integer weights; a row of the packed tensor holds `columns` columns."""
    return 2 * a.numel() * b.shape[0] * columns


def _flop_of_added_product(_: Tensor, a: Tensor, b: Tensor, *__: Any, **___: Any) -> int:
    return _flop_of_product(a, b)


def _flop_of_vectors(a: Tensor, *_: Any, **__: Any) -> int:
    """Each element of a matrix or a vector is multiplied once."""
    return 2 * a.numel()


def _flop_of_added_vector(_: Tensor, a: Tensor, *__: Any, **___: Any) -> int:
    return _flop_of_vectors(a)


def _flop_of_distances(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    """Euclidean distances of all pairs of rows are one product, of rows that have two further columns."""
    return 2 * (a.numel() // a.shape[-1]) * b.shape[-2] * (a.shape[-1] + 2) if a.numel() else 0


def _flop_of_trilinear(*arguments: Any, **_: Any) -> int:
    """The product of three tensors that are repeated along their missing dimensions, and then summed up."""
    shapes = []
    for tensor, missing in zip(arguments[:3], arguments[3:6], strict=True):
        shape = list(tensor.shape)
        for place in missing:
            shape.insert(place, 1)
        shapes.append(shape)
    return int(2 * math.prod(next((size for size in sizes if size != 1), 1) for sizes in zip(*shapes, strict=True)))


#: Formulas in place of PyTorch's, and of operators for which it has none.
_FLOP: Final[Mapping[str, Any]] = {
    "_addmm_activation": _flop_of_added_product,
    "_euclidean_dist": _flop_of_distances,
    "_grouped_mm": _flop_of_groups,
    "_int_mm": _flop_of_product,
    "_scaled_grouped_mm": _flop_of_groups,
    "_scaled_grouped_mm_v2": _flop_of_groups,
    "_scaled_mm_v2": _flop_of_product,
    "_trilinear": _flop_of_trilinear,
    "_weight_int4pack_mm": partial(_flop_of_packed_product, 8),
    "_weight_int8pack_mm": partial(_flop_of_packed_product, 1),
    "addbmm": _flop_of_added_product,
    "addbmm_": _flop_of_added_product,
    "addmm_": _flop_of_added_product,
    "addmv": _flop_of_added_vector,
    "addmv_": _flop_of_added_vector,
    "baddbmm_": _flop_of_added_product,
    "convolution_backward": _flop_of_convolution_backward,
    "dot": _flop_of_vectors,
    "mv": _flop_of_vectors,
    "vdot": _flop_of_vectors,
}

_overloads: dict[int, Overload] = {}


def overload_of(func: Any) -> Overload:
    """The facts of an overload. They are kept by its identity, since its hash is computed in Python."""
    overload = _overloads.get(id(func))
    if overload is None:
        overload = _overloads[id(func)] = Overload(func)
    return overload


def tensors_of(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among arguments, and in the lists among them."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, _NESTED):
            tensors += tensors_of(value)
    return tensors


class OwnKernel(NamedTuple):
    """A kernel of the program's own, counted as if it were an operator."""

    func: str
    is_view: bool = False


#: Shape, strides and type of a tensor.
_Spec = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
_Arguments = tuple[tuple[str, Any], ...]
#: The key of calls that are counted together: operator, inputs, outputs, the host's tensor, arguments,
#: operations, declared cost, phase, file, line, whether a CUDA graph launches it.
_Key = tuple[
    "Overload | OwnKernel",
    tuple[_Spec, ...],
    tuple[_Spec, ...],
    _Spec | None,
    _Arguments,
    int,
    DeclaredCost | None,
    str,
    str | None,
    int | None,
    bool,
]

#: Operators whose operations follow from their tensors' shapes; to count them takes longer than all the rest.
_FLOP_OF_SHAPES: Final = {"mm", "addmm", "bmm", "baddbmm"}


class OperatorLog:
    """Operators on the virtual GPU, alike calls counted together, and the order of calls and syncs."""

    def __init__(self) -> None:
        self._calls: Counter[_Key] = Counter()
        self._places: dict[_Key, int] = {}
        self._queue: list[int] = []
        #: The same with calls of compiled code in place of the operators in them; the calls that it has.
        self._compiled_queue: list[int] = []
        self._compiled_calls: set[int] = set()
        #: The same with as little as can be of compiled code whose kernels are not known.
        self._fused_queue: list[int] = []
        self._flop: dict[tuple[Overload, tuple[_Spec, ...], tuple[_Spec, ...]], int] = {}

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
    ) -> None:
        """Count one call, as `Syncs.ran` describes it.

        `site` is the program's line, or None. `in_graph`: whether a CUDA graph launches it. `compiled` is None for an
        operator outside of compiled code. Inside it has two numbers: one of the call's forward or backward pass, and
        the one that stands for that pass in `compiled_queue`, which is None if its kernels are not known.
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
                flop = self._flop[shapes] = counted_flop(overload.flop, args, kwargs, result)
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
        cost = declared_cost(overload, args, kwargs)
        self._count((overload, inputs, outputs, host, arguments, flop, cost, phase, file, line, in_graph), compiled)

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
        inputs, outputs = (tuple(_specs_of(tensor._inner for tensor in some)) for some in (read, written))  # type: ignore[attr-defined]
        kernel = OwnKernel(f"{OWN_KERNELS}.{name}")
        self._count((kernel, inputs, outputs, None, (), 0, None, phase, file, line, in_graph), compiled)

    def _count(self, key: _Key, compiled: tuple[int, int | None] | None = None) -> None:
        overload, flop, cost = key[0], key[5], key[6]
        self._calls[key] += 1
        place = self._places.setdefault(key, len(self._places))
        self._queue.append(place)
        if compiled is None:
            self._compiled_queue.append(place)
            self._fused_queue.append(place)
        elif compiled[1] is None:
            self._compiled_queue.append(place)
            if flop or cost is not None or isinstance(overload, OwnKernel):  # which is fused with nothing
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
            overload, inputs, outputs, host, arguments, flop, cost, phase, file, line, in_graph = key
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
                    arguments=dict(arguments),
                    torch=release_of(torch.__version__),
                    cuda=_cuda(),
                    cost=cost,
                    in_graph=in_graph,
                )
            )
        return tuple(calls)


def counted_flop(formula: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """The operations by a formula of PyTorch's or of the program's; 0 if the formula fails.

    The formula gets the tensors on the CPU, so that a value that it reads is no sync of the program. A formula is made
    for one overload of an operator: it does not know the types that other overloads (`out_dtype`) take by position.
    """
    inside = _inside((list(args), dict(kwargs), result))
    positional, named, output = inside
    for arguments in (positional, [value for value in positional if not isinstance(value, torch.dtype)]):
        with suppress(Exception):  # whatever somebody's formula raises, the program runs on
            return int(formula(*arguments, **named, out_val=output))
    return 0


def declared_cost(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> DeclaredCost | None:
    """The cost of one call by the formula that is declared for its operator; None without one.

    The formula gets the tensors on the CPU, so that a value that it reads is no sync of the program.

    Raises:
        PredictError: the formula fails, or returns something else.
    """
    formula = None if overload.namespace == "aten" else cost_formula(overload.name)
    if formula is None:
        return None
    positional, named = _inside((list(args), dict(kwargs)))
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


def _inside(value: Any) -> Any:
    """The value with CPU tensors in place of virtual ones."""
    if isinstance(value, dict):
        return {name: _inside(item) for name, item in value.items()}
    if isinstance(value, _NESTED):
        return type(value)([_inside(item) for item in value])
    return getattr(value, "_inner", value) if isinstance(value, Tensor) else value


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


def is_same_memory(tensor: Tensor, other: Tensor) -> bool:
    """Whether a copy of one to the other, or a comparison, is left out, as the outcome is clear; also of meta tensors.

    `Tensor.is_set_to` is not implemented for those.
    """
    if tensor.layout is not torch.strided or other.layout is not torch.strided or tensor.dtype != other.dtype:
        return False
    same_storage = storage_key(tensor.untyped_storage()) == storage_key(other.untyped_storage())
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
