"""An operator: what all its calls have in common, read from its schema once."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.estimate.kernel_classes import OPERATORS
from steptrace.predict.cpu_operators import only_on_cpu
from steptrace.predict.flop import formula_of
from steptrace.predict.pytorch import has_kernel, overload_name

_COMPOSITE: Final = "CompositeImplicitAutograd"
_DATA_DEPENDENT: Final = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
#: Operators whose second argument, the indices, may lie on the host.
_INDEX: Final = re.compile(r"_?(unsafe_)?index(_put)?(_impl)?_?")
#: The types in which operators nest tensors. A tuple, since a union of types would be made anew at each check.
_NESTED: Final = (list, tuple)
_NESTED_ON_CPU: Final = "NestedTensorCPU"
#: Operators that CUDA has a kernel of, and that PyTorch composes of others elsewhere.
FUSED: Final = ("_fused_rms_norm", "mish_backward", "silu_backward")
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
        is_whole_if_nested: whether it is one operator all the same for nested tensors of the strided layout.
        is_index: whether its second argument is a list of indices.
        takes_device: whether it can name a device.
        data_dependent: whether its results, or their sizes, depend on values.
        copied: the position of the argument that it copies; None if it does something else.
        names: the names of its arguments; `defaults` has their default values by name.
        written: position and name of each argument that it writes to.
        reshapes: whether it may change the shape of such an argument.
        given_back: for each result, the name of the argument that it is; None for a new tensor.
        only_on_cpu: whether PyTorch has it for the CPU and not for CUDA.
        flop: the formula for its floating-point operations; None without a formula.
        recorded: names of the arguments on which its launches depend.
    """

    __slots__ = (
        "aliases", "copied", "data_dependent", "defaults", "flop", "func", "given_back", "is_composite", "is_index",
        "is_mutable", "is_view", "is_whole_if_nested", "name", "names", "namespace", "only_on_cpu", "packet",
        "recorded", "reshapes", "takes_device", "written",
    )  # fmt: skip

    def __init__(self, func: Any) -> None:
        schema = func._schema
        arguments = schema.arguments
        self.func = func
        self.namespace = func.namespace
        self.name = str(schema.name)
        self.packet = self.name.partition("::")[2]
        self.is_view = bool(func.is_view)
        self.is_mutable = bool(schema.is_mutable)
        self.aliases = self.is_view or any(argument.alias_info is not None for argument in arguments)
        composed = has_kernel(func.name(), _COMPOSITE)
        self.is_composite = composed and self.packet not in FUSED
        self.is_whole_if_nested = composed and has_kernel(func.name(), _NESTED_ON_CPU)
        self.only_on_cpu = self.namespace == "aten" and func.name().removeprefix("aten::") in only_on_cpu()
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
        self.flop = formula_of(func.overloadpacket, self.packet)
        self.recorded = tuple(OPERATORS["arguments"].get(self.packet, ())) if self.namespace == "aten" else ()

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by the schema's names, with its defaults."""
        return {**self.defaults, **dict(zip(self.names, args, strict=False)), **kwargs}


_overloads: dict[int, Overload] = {}


def overload_of(func: Any) -> Overload:
    """The facts of an overload. They are kept by its identity, since its hash is computed in Python."""
    overload = _overloads.get(id(func))
    if overload is None:
        overload = Overload(func)
        _overloads[id(func)] = overload
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
