"""The kernels that one call of an operator launches, with their class, FLOP and bytes.

Nothing here depends on the GPU. `steptrace.estimate.times` says how long a kernel takes on one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from steptrace.documents.estimate import DeclaredCost, OperatorCalls, TensorSpec
from steptrace.estimate import kernel_classes
from steptrace.estimate.cudnn import (
    PADDED,
    computed_flop,
    group_effort,
    images_and_weight,
    is_backward,
    product_of,
    winograd_effort,
)
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.kernel_classes import FORMATS, LOOKED_UP, arithmetic_of, base_name, kind_of
from steptrace.estimate.launches import launches
from steptrace.estimate.layout import elements, item_bytes, other_layout, reads_in_turn
from steptrace.estimate.lists import is_of_lists, lists_of

#: The format of a kernel that multiplies nothing.
NO_FORMAT: Final = "none"
CONVERSION: Final = "layout conversion"


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """An item of the GPU's queue: the kernels of one class that one call launches, or one kernel of compiled code.

    Attributes:
        kind: its class, a key of constants.toml such as `product` or `batch norm backward`.
        arithmetic: the type that it multiplies in (`float32`, `tf32`, `bfloat16`), see `Gpu.flops`.
        flop: floating-point operations; without those that causal attention masks.
        effort: factor by which the arithmetic takes longer on any GPU, for wasted channels. The part that depends on
            the GPU follows from `sizes`, see `steptrace.estimate.tiles`.
        bytes: bytes that it reads and writes, at least.
        launches: number of launches.
        turns: how often a thread of a reduction waits for memory; number of time steps of a recurrent layer.
        sizes: of a product, or a convolution in float32 as one: batches, rows, columns, length of the sums. Of
            attention: heads of all samples, queries, keys, width of a head. Empty where not known.
        shape: identifies the shape; the times of each shape deviate randomly from the class.
        over_bus: whether its bytes go over PCIe.
        pageable: of a copy over PCIe, whether the host's memory is not pinned.
        other_stream: of such a copy, whether it runs beside the kernels, on a stream of its own.
        in_graph: whether a CUDA graph launches it instead of the host.
        in_float32: the kernel in its place on a GPU without TF32, where that is of another class.
        is_wide: whether its class was measured on narrower elements than its own, see `Constants.efficiency_for`.
        tuned: whether a measurement on the GPU chose it as the quickest of several kernels (`max-autotune`).
    """

    kind: str
    arithmetic: str = "float32"
    flop: float = 0.0
    effort: float = 1.0
    bytes: float = 0.0
    launches: int = 1
    turns: float = 0.0
    sizes: tuple[int, ...] = ()
    shape: str = ""
    over_bus: bool = False
    pageable: bool = False
    other_stream: bool = False
    in_graph: bool = False
    tuned: bool = False
    in_float32: "Kernel | None" = None
    is_wide: bool = False

    @property
    def host_launches(self) -> int:
        """Launches by the host."""
        return 0 if self.in_graph else self.launches

    @property
    def format(self) -> str:
        """The number format of its arithmetic: `32`, `tf32`, `16`, `8`; `none` without arithmetic of note."""
        return FORMATS.get(self.arithmetic, "32") if self.flop else NO_FORMAT


def kernels_of(call: OperatorCalls, *, tf32: bool = False) -> tuple[Kernel, ...]:
    """The kernels of one call of an operator; empty if it launches nothing.

    Args:
        call: the operator.
        tf32: whether the program allows this operator to multiply float32 in TF32.
    """
    if call.in_graph:
        launched = kernels_of(replace(call, in_graph=False), tf32=tf32)
        return tuple(replace(kernel, in_graph=True) for kernel in launched)
    count = launches(call) if call.cost is None else call.cost.launches
    if not count:
        return ()
    if call.cost is not None:
        return (_of_cost(call, call.cost, tf32=tf32),)
    arithmetic = arithmetic_of(call, tf32=tf32)
    format_ = FORMATS.get(arithmetic, "32")
    kind = kind_of(call, format_)
    flop = float(call.flop)
    effort = 1.0
    sizes: tuple[int, ...] = ()
    if kind in _TILED_CONVOLUTIONS and format_ == "32" and flop:
        sizes = product_of(call)
        effort = 1.0 if kind.startswith(kernel_classes.IMPLICIT) else winograd_effort(call)
    elif kind.startswith(kernel_classes.CONVOLUTION) and flop:
        effort = computed_flop(call) / flop
    elif kind.startswith(f"{kernel_classes.GROUPED}, channels last"):
        effort = group_effort(call)
    elif kind.startswith(kernel_classes.ATTENTION) and flop:
        sizes = _attention_sizes(call)
        # Causal attention skips the masked half.
        flop = flop / 2 if sizes and call.arguments.get("is_causal") and sizes[1] == sizes[2] else flop
    elif "product" in kind and flop:
        sizes = _product_sizes(call)
    kernel = Kernel(
        kind=kind,
        # A depthwise convolution does not use tensor cores; it multiplies in float32.
        arithmetic="float32" if kind.startswith(kernel_classes.DEPTHWISE) else arithmetic,
        flop=flop * (_OF_COMPLEX if _is_complex(call) else 1),
        effort=effort,
        bytes=float(moved_bytes(call) + read_again(call, kind)),
        launches=count,
        turns=_turns(call, kind),
        sizes=sizes,
        shape=_shape(call),
        over_bus=kind == kernel_classes.HOST_COPY,
        pageable=bool(call.arguments.get("pageable")),
        other_stream=bool(call.arguments.get("other_stream")),
        is_wide=kind.startswith(kernel_classes.OF_IMAGES) and item_bytes(call.inputs[0]) > kernel_classes.SHORT_ITEM,
    )
    if arithmetic == "tf32" and kernel_classes.is_convolution(call):
        kernel = replace(kernel, in_float32=kernels_of(call)[0])
    if base_name(call.name) in _FILLED_FIRST:
        filled = float(sum(map(tensor_bytes, call.outputs)))
        fill = Kernel(kind=kernel_classes.ELEMENTWISE, bytes=filled, shape=kernel.shape)
        return fill, replace(kernel, bytes=kernel.bytes - filled, launches=max(1, count - 1))
    if not kernel_classes.is_convolution(call):
        return (kernel,)
    converted = converted_bytes(call, format_)
    gradients = _gradients(call) if is_backward(call) else 1
    kernels = [replace(kernel, launches=max(1, min(count, gradients)))]
    extra = count - kernels[0].launches
    if converted:
        kernels.append(Kernel(kind=CONVERSION, bytes=float(converted), launches=2, shape=kernel.shape))
    return (*kernels, *_beside(call, extra, kernel.shape))


#: Convolutions whose share in float32 was measured with the losses of tiles.
_TILED_CONVOLUTIONS: Final = frozenset(
    f"{kind}{backward}"
    for kind in (kernel_classes.CONVOLUTION, kernel_classes.IMPLICIT)
    for backward in ("", " backward")
)
#: Real multiplications in one of complex numbers. PyTorch's formulas count one.
_OF_COMPLEX: Final = 4


def _is_complex(call: OperatorCalls) -> bool:
    return any(tensor.dtype.startswith("complex") for tensor in (*call.inputs, *call.outputs))


def _of_cost(call: OperatorCalls, cost: DeclaredCost, *, tf32: bool) -> Kernel:
    """The kernels of a custom operator, by its declared cost."""
    return Kernel(
        kind=kernel_classes.DECLARED,
        arithmetic=cost.arithmetic or arithmetic_of(call, tf32=tf32),
        flop=float(call.flop) if cost.flop is None else float(cost.flop),
        bytes=float(moved_bytes(call)) if cost.bytes is None else float(cost.bytes),
        launches=cost.launches,
        shape=_shape(call),
    )


def on_gpu(kernel: Kernel, gpu: Gpu) -> Kernel:
    """The kernel as a GPU computes it.

    A GPU without TF32 multiplies in float32, though the program allows TF32. Attention whose kernels feed tensor cores
    by warps is like any other where nothing feeds them faster.
    """
    if kernel.in_float32 is not None and gpu.tf32_tflops is None:
        return replace(kernel.in_float32, launches=kernel.launches)
    if kernel.arithmetic == "tf32" and gpu.tf32_tflops is None:
        return replace(kernel, arithmetic="float32", kind=kernel.kind.replace(", channels last", ""))
    if gpu.is_fed_by_warps and kernel.kind.startswith(kernel_classes.WARP_ATTENTION):
        return replace(kernel, kind=kernel.kind.replace(kernel_classes.WARP_ATTENTION, kernel_classes.ATTENTION))
    return kernel


def _beside(call: OperatorCalls, launches: int, shape: str) -> Iterator[Kernel]:
    """A convolution's other kernels: they add the bias, sum up its gradient, or copy tensors to another layout.

    Args:
        call: the convolution, or its backward pass.
        launches: number of launches of these kernels together.
        shape: the convolution's, see `Kernel.shape`.
    """
    images, weight = images_and_weight(call)
    of_images = (images, weight, call.inputs[0]) if is_backward(call) else (images, weight)
    if launches and is_backward(call) and any(len(output.shape) == 1 for output in call.outputs):
        yield Kernel(kind=kernel_classes.REDUCTION, bytes=float(tensor_bytes(call.inputs[0])), shape=shape)
        launches -= 1
    elif launches and not is_backward(call) and len(call.inputs) > 2:
        is_short = item_bytes(call.outputs[0]) <= kernel_classes.SHORT_ITEM  # the bias is broadcast over the images
        kind = kernel_classes.STRIDED if is_short else kernel_classes.ELEMENTWISE
        yield Kernel(kind=kind, bytes=2.0 * tensor_bytes(call.outputs[0]), shape=shape)
        launches -= 1
    if launches:
        copied = [tensor for tensor in of_images if other_layout(tensor, (images, weight))]
        # What is broadcast is read once and written in full.
        moved = float(sum(tensor_bytes(tensor) + elements(tensor) * item_bytes(tensor) for tensor in copied))
        yield Kernel(kind=kernel_classes.STRIDED, bytes=moved, launches=launches, shape=shape)


def _attention_sizes(call: OperatorCalls) -> tuple[int, ...]:
    """Heads of all samples, queries, keys, and the width of a head; empty where not known."""
    place = 1 if is_backward(call) else 0  # the first input of a backward pass is the gradient of the result
    if len(call.inputs) < place + 2 or len(call.inputs[place].shape) < 3:
        return ()
    queries, keys = (call.inputs[place + index].shape for index in (0, 1))
    sizes = (math.prod(queries[:-2]), queries[-2], keys[-2], queries[-1])
    return sizes if all(sizes) else ()


def _product_sizes(call: OperatorCalls) -> tuple[int, ...]:
    """Batches, rows and columns of the result, and the length of its sums, which follows from the FLOP.

    Empty where not known.
    """
    shape = call.outputs[0].shape if call.outputs else ()
    count = math.prod(shape)
    if len(shape) < 2 or not count:
        return ()
    batches = math.prod(shape[:-2]) if kernel_classes.is_batched(call) else 1
    return batches, count // shape[-1] // batches, shape[-1], max(1, round(call.flop / 2 / count))


def _gradients(call: OperatorCalls) -> int:
    """How many gradients, of images and weight, a backward pass computes."""
    return max(1, sum(len(output.shape) > 2 for output in call.outputs))


_THREADS_OF_BLOCK: Final = 1024


def _turns(call: OperatorCalls, kind: str) -> float:
    if kind == kernel_classes.REDUCTION:
        return float(reads_in_turn(call.inputs[0], call.outputs)[0]) if call.inputs else 0.0
    if kind == kernel_classes.ONE_BLOCK:
        scores = call.inputs[int(is_backward(call))]
        reduced = call.inputs[0] if is_backward(call) else next(iter(call.outputs), None)
        in_one_block = reduced is not None and not reduced.shape and len(scores.shape) > 1
        return scores.shape[0] / _THREADS_OF_BLOCK if in_one_block else 0.0
    if kind == kernel_classes.RECURRENT and (arguments := call.arguments):
        length = (
            len(arguments["batch_sizes"]) or call.inputs[0].shape[arguments["batch_first"]]
        )  # sizes: of packed sequences
        return float(length * arguments["num_layers"] * (1 + arguments["bidirectional"]))
    return 0.0


def _shape(call: OperatorCalls) -> str:
    """Identifies an operator with the sizes and types of its tensors."""
    tensors = (f"{tensor.shape}{tensor.dtype}" for tensor in (*call.inputs[:3], *call.outputs[:1]))
    return f"{base_name(call.name)} {' '.join(tensors)}"


#: Operators that write their first input and do not read it.
_OUTPUT_ONLY: Final = frozenset(("zero_", "fill_", "copy_", "random_", "uniform_", "normal_", "bernoulli_"))
#: Backward passes of losses. They do not read the scores, their second input. They fill the gradient with zeros first,
#: and then write one element for each label.
_FILLED_FIRST: Final = frozenset(("nll_loss_backward", "nll_loss2d_backward"))
#: Operators in place that write a part of their first input: the elements that the input at this position has.
_WRITTEN_PART: Final[Mapping[str, int]] = {
    "_index_put_impl_": -1, "index_add_": -1, "index_copy_": -1, "index_put_": -1, "put_": -1, "scatter_": 1,
    "scatter_add_": 1, "scatter_reduce_": 1,
}  # fmt: skip
#: Operators that read the rows of a table, their first input, that their second input names.
_BAGS: Final = ("_embedding_bag", "_embedding_bag_forward_only")
#: Operators that read their first two inputs twice: for the gradient of the input, and for those of weight and bias.
_READ_TWICE: Final = ("native_layer_norm_backward", "_fused_rms_norm_backward")
#: Norms compute statistics first and then use them. By class: how many of its first inputs are read a second time.
_STATISTICS: Final = {"batch norm": 1, "batch norm backward": 2, "group norm": 1, "group norm backward": 2}
#: Bits of a key that one pass of a radix sort handles; each pass reads and writes keys and their positions.
_BITS: Final = 8
_POSITION_BYTES: Final = 8


def moved_bytes(call: OperatorCalls) -> int:
    """Bytes that one call reads and writes at least: its inputs and outputs."""
    if call.host is not None:
        return _over_bus(call, call.host)
    name = base_name(call.name)
    inputs: Sequence[TensorSpec] = call.inputs
    if (written_part := _written_part(call)) is not None:
        return sum(map(tensor_bytes, inputs[1:])) + written_part
    if name in _BAGS and len(inputs) > 1:
        row = elements(inputs[0]) // max(1, inputs[0].shape[0]) * item_bytes(inputs[0])
        return elements(inputs[1]) * row + sum(map(tensor_bytes, (*inputs[1:], *call.outputs)))
    if name in _FILLED_FIRST:
        inputs = (*inputs[:1], *inputs[2:])
    if name in _OUTPUT_ONLY or name in LOOKED_UP or _takes_shape_alone(name):
        inputs = inputs[1:]
    if name in _READ_TWICE:
        inputs = (*inputs, *inputs[:2])
    written = sum(map(tensor_bytes, call.outputs)) * (2 if name in LOOKED_UP else 1)
    if is_of_lists(name) and not call.outputs:
        share = lists_of(call)
        written = (
            sum(map(tensor_bytes, inputs)) * max(1, share - 1) // share
            if name.startswith("_fused_")
            else sum(map(tensor_bytes, inputs[: len(inputs) // share]))
        )
    return sum(map(tensor_bytes, inputs)) + written


def _takes_shape_alone(name: str) -> bool:
    """Whether an operator makes a tensor of the shape or type of its first input, which it does not read."""
    return name.startswith("new_") or name.endswith("_like")


def _written_part(call: OperatorCalls) -> int | None:
    """Bytes that are read and written of a tensor that is changed in part; None if all of it may be."""
    place = _WRITTEN_PART.get(base_name(call.name))
    if place is None or len(call.inputs) < 2:
        return None
    target = call.inputs[0]
    part = call.inputs[place]
    by_mask = any(tensor.dtype in ("bool", "uint8") for tensor in call.inputs[1:])
    # How many elements a mask selects is not known, nor how many get one value.
    if by_mask or elements(part) <= 1 or call.arguments.get("host_value"):
        return None
    return 2 * min(elements(part), elements(target)) * item_bytes(target)


def read_again(call: OperatorCalls, kind: str) -> int:
    """Bytes that a class's kernels move in addition to `moved_bytes`: a second pass, or the passes of a sort."""
    statistics = _STATISTICS.get(kind.replace(", channels last", "").replace(kernel_classes.UNALIGNED_NORM, ""))
    if statistics is not None:
        return sum(map(tensor_bytes, call.inputs[:statistics]))
    if kind == kernel_classes.SORT and call.inputs:
        passes = max(1, 8 * item_bytes(call.inputs[0]) // _BITS)
        return 2 * passes * elements(call.inputs[0]) * (item_bytes(call.inputs[0]) + _POSITION_BYTES)
    return 0


def _over_bus(call: OperatorCalls, host: TensorSpec) -> int:
    """Bytes of a copy between host and GPU: in the host's type, or in the GPU's if the host waits and casts."""
    there = call.outputs[0] if call.outputs else call.inputs[0]
    moved = host if call.arguments.get("non_blocking") else there
    return max(elements(host), elements(there)) * item_bytes(moved)


def converted_bytes(call: OperatorCalls, format_: str) -> int:
    """Bytes that a 16-bit convolution moves to convert its images to channels-last and its result back.

    cuDNN's kernels for tensor cores need channels last. Tensors in another layout are converted before, and the result
    after. A backward pass converts for each of its two gradients. Three kinds need no conversion: depthwise
    convolutions use no tensor cores, those of size 1 are matrix products, and TF32 has kernels for both layouts.
    """
    tensors = [tensor for tensor in (*call.inputs, *call.outputs) if len(tensor.shape) >= 4]
    if format_ != "16" or len(tensors) < 3 or tensors[0].strides[1] == 1:
        return 0
    images, weight = images_and_weight(call)
    if kind_of(call, format_).startswith(kernel_classes.DEPTHWISE) or all(size == 1 for size in weight.shape[2:]):
        return 0
    if not is_backward(call):
        return _converted(images) + _converted(call.outputs[0])
    of_images = [output for output in call.outputs if output.shape == images.shape]
    return _converted(images) + sum(map(_converted, of_images)) + 2 * _converted(call.inputs[0])


def _converted(images: TensorSpec) -> int:
    """Bytes that a conversion of images reads and writes; fewer than 8 channels are padded."""
    return round(tensor_bytes(images) * (1 + max(1.0, PADDED / max(1, images.shape[1]))))


def tensor_bytes(tensor: TensorSpec) -> int:
    """Bytes of a tensor's distinct elements: broadcast ones count once. 0 for a sparse tensor; its parts count."""
    if tensor.shape and not tensor.strides:
        return 0
    distinct = math.prod(size for size, stride in zip(tensor.shape, tensor.strides, strict=True) if stride or size == 0)
    return distinct * item_bytes(tensor)
