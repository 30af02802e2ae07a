"""Gives the kernels of compiled code the form of recorded operators, as the rest of a step has it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.estimate.kernel_classes import OWN_KERNELS
from steptrace.inductor.lower import FLEX_ATTENTION, Fused, Launch
from steptrace.predict.flop import counted_flop
from steptrace.predict.operator_log import declared_cost, tensor_specs
from steptrace.predict.operators import overload_of, tensors_of
from steptrace.torch_names import private

FakeTensor: Any = private("torch._subclasses.fake_tensor.FakeTensor")
FakeTensorMode: Any = private("torch._subclasses.fake_tensor.FakeTensorMode")
pytree: Any = private("torch.utils._pytree")
HigherOrderOperator: Any = private("torch._ops.HigherOrderOperator")
#: Wraps operators with side effects.
_WITH_EFFECTS: Final = torch.ops.higher_order.with_effects
_CONVOLUTION: Final = torch.ops.aten.convolution.default
#: Names of operators that stand for kernels that Inductor writes.
POINTWISE: Final = "inductor.pointwise"
REDUCTION: Final = "inductor.reduction"
_FLASH: Final = "aten._scaled_dot_product_flash_attention.default"
_FLASH_BACKWARD: Final = "aten._scaled_dot_product_flash_attention_backward.default"
#: The value of a tensor that the code reads while nothing is computed.
ASSUMED_VALUE: Final = 1


def flex_calls(tensors: Sequence[Tensor], share: float) -> tuple[OperatorCalls, OperatorCalls]:
    """The kernels of `flex_attention`, forward and backward, as a flash attention's with this share of its products."""
    query, key, value = tensors
    inputs = tensor_specs(tensors)
    outputs = tensor_specs([query])
    batch, heads, length, width = map(int, query.shape)
    flop = int(2 * batch * heads * length * int(key.shape[2]) * (width + int(value.shape[3])) * share)
    forward = _call(_FLASH, inputs, outputs, flop=flop, arguments={})
    # Its backward pass has five products where the forward pass has two.
    backward = _call(_FLASH_BACKWARD, (*outputs, *inputs), inputs, flop=flop * 5 // 2, arguments={})
    return forward, backward


def with_numbers(launch: Launch) -> Launch:
    """A launch whose dynamic sizes are numbers."""
    if isinstance(launch, Fused):
        return launch
    args, kwargs, result = pytree.tree_map(_with_number, (launch.args, launch.kwargs, launch.result))
    return replace(launch, args=args, kwargs=kwargs, result=result)


def _with_number(value: Any) -> Any:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return number_of(value)
    if not isinstance(value, FakeTensor) or value.layout is not torch.strided:
        return value
    sizes = tuple(value.shape)
    strides = tuple(value.stride())
    if not any(isinstance(size, torch.SymInt) for size in (*sizes, *strides)):
        return value
    numbers = [[number_of(size) for size in dimensions] for dimensions in (sizes, strides)]
    empty = torch.empty_strided(*numbers, dtype=value.dtype, device="meta")
    return FakeTensor(FakeTensorMode(), empty, value.fake_device)


def number_of(value: Any) -> Any:
    """The value of a dynamic size when its graph was traced; 1 of one that depends on the values of tensors.

    To convert it in any other way would make it a constant of the code.
    """
    node = getattr(value, "node", None)
    if node is None:
        return value
    return node.hint if node.has_hint() else ASSUMED_VALUE


def recorded_form(launch: Launch, mask_share: float) -> OperatorCalls | None:
    """A launch in the form of a recorded operator, without a line: compiled code has the line of its call."""
    if isinstance(launch, Fused):
        return _call(
            REDUCTION if launch.is_reduction else POINTWISE,
            arguments={"read": launch.read, "written": launch.written, "operators": len(launch.operators)},
        )
    if launch.operator in FLEX_ATTENTION:
        return flex_calls(launch.args[:3], mask_share)[FLEX_ATTENTION.index(launch.operator)]
    if (
        launch.operator is _WITH_EFFECTS
    ):  # an operator that must keep its place among others, such as a check of a result
        launch = replace(launch, operator=launch.args[1], args=launch.args[2:])
    if isinstance(launch.operator, HigherOrderOperator):  # such as a Triton kernel of the program
        tensors, results = map(pytree.tree_leaves, ((launch.args, launch.kwargs), launch.result))
        tensors, results = ([leaf for leaf in leaves if isinstance(leaf, Tensor)] for leaves in (tensors, results))
        name = f"{OWN_KERNELS}.{launch.operator.name()}"
        return _call(name, tensor_specs(tensors), tensor_specs(results), arguments={})
    overload = overload_of(launch.operator)
    values = (*launch.args, *launch.kwargs.values())
    inputs = tensor_specs(tensors_of(values))
    if launch.operator is _CONVOLUTION:
        inputs = inputs[:2]  # Inductor adds a bias in the kernel that follows
    if len(launch.layouts) == len(inputs):  # Inductor may lay tensors out in another way than the code does
        inputs = tuple(replace(tensor, strides=strides) for tensor, strides in zip(inputs, launch.layouts, strict=True))
    outputs = tensor_specs(tensors_of((launch.result,)))
    if launch.layout is not None and len(outputs) == 1:
        outputs = (replace(outputs[0], strides=launch.layout),)
    flop = 0
    if overload.flop is not None:
        flop = counted_flop(overload.flop, launch.args, launch.kwargs, launch.result)
    recorded = overload.bind(launch.args, launch.kwargs) if overload.recorded else {}
    arguments = {
        name: isinstance(recorded[name], Tensor) or recorded[name] for name in overload.recorded if name in recorded
    }
    recorded_call = _call(
        str(launch.operator), inputs, outputs, flop=flop, is_view=overload.is_view, arguments=arguments
    )
    return replace(recorded_call, cost=declared_cost(overload, launch.args, launch.kwargs))


def _call(
    name: str,
    inputs: tuple[TensorSpec, ...] = (),
    outputs: tuple[TensorSpec, ...] = (),
    *,
    flop: int = 0,
    is_view: bool = False,
    arguments: Mapping[str, Any],
) -> OperatorCalls:
    return OperatorCalls(
        name=name, inputs=inputs, outputs=outputs, is_view=is_view, flop=flop, calls=1, phase="", file=None, line=None,
        arguments=dict(arguments),
    )  # fmt: skip
