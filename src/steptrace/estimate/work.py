"""What one call of an operator puts into the GPU's queue: kernels with their class, FLOP and bytes.

Nothing here depends on a GPU. How long a kernel takes on one is `steptrace.estimate.times`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.estimate import rules
from steptrace.estimate.cudnn import computed_flop, images_and_weight, is_backward
from steptrace.estimate.launches import launches
from steptrace.estimate.layout import elements, item_bytes, reads_in_turn
from steptrace.estimate.lists import is_of_lists, lists_of
from steptrace.estimate.rules import FORMATS, LOOKED_UP, arithmetic_of, base_name, kind_of

#: What a kernel computes in where nothing is multiplied.
NO_FORMAT: Final = "none"
CONVERSION: Final = "layout conversion"


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Kernels of one class that one call launches, or one kernel of compiled code: an item of the GPU's queue.

    Attributes:
        kind: its class, a key of constants.toml such as `product` or `batch norm backward`.
        arithmetic: the type that it multiplies in (`float32`, `tf32`, `bfloat16`), see `Gpu.flops`.
        flop: floating-point operations; of causal attention those that are not masked.
        effort: how many times as long as these FLOP take it should be at the class's share: parts of tiles and blocks
            that are computed in vain.
        bytes: that it reads and writes at least.
        launches: how many launches these are.
        turns: how often a thread of a reduction waits for memory, or a recurrent layer for its last time step.
        shape: what tells it from others of its class: each shape lies at some distance from the class.
        over_bus: whether its bytes go over PCIe.
        in_graph: whether a CUDA graph launches it, so that the host does not.
    """

    kind: str
    arithmetic: str = "float32"
    flop: float = 0.0
    effort: float = 1.0
    bytes: float = 0.0
    launches: int = 1
    turns: float = 0.0
    shape: str = ""
    over_bus: bool = False
    in_graph: bool = False

    @property
    def host_launches(self) -> int:
        """Launches by the host."""
        return 0 if self.in_graph else self.launches

    @property
    def format(self) -> str:
        """The number format of its arithmetic: `32`, `tf32`, `16`, `8`; `none` without arithmetic of note."""
        return FORMATS.get(self.arithmetic, "32") if self.flop else NO_FORMAT


def kernels_of(call: OperatorCalls, *, tf32: bool = False) -> tuple[Kernel, ...]:
    """The kernels of one call of an operator; none where it launches nothing.

    Args:
        call: the operator.
        tf32: whether the program allows float32 products, or convolutions, to be in TF32.
    """
    count = launches(call)
    if not count:
        return ()
    arithmetic = arithmetic_of(call, tf32=tf32)
    format_ = FORMATS.get(arithmetic, "32")
    kind = kind_of(call, format_)
    flop, effort = float(call.flop), 1.0
    if kind.startswith("convolution, both sides under 32 channels") and flop:
        effort = computed_flop(call) / flop
    elif kind.startswith(rules.ATTENTION) and flop:
        flop, effort = _attended(call)
    kernel = Kernel(
        kind=kind,
        # A depthwise convolution multiplies outside of the tensor cores, in float32.
        arithmetic="float32" if kind.startswith(rules.DEPTHWISE) else arithmetic,
        flop=flop,
        effort=effort,
        bytes=float(moved_bytes(call) + read_again(call, kind)),
        launches=count,
        turns=_turns(call, kind),
        shape=_shape(call),
        over_bus=kind == rules.HOST_COPY,
    )
    if not rules.is_convolution(call):
        return (kernel,)
    converted = converted_bytes(call, format_)
    gradients = _gradients(call) if is_backward(call) else 1
    kernels = [replace(kernel, launches=max(1, min(count, gradients)))]
    extra = count - kernels[0].launches
    if converted:
        kernels.append(Kernel(kind=CONVERSION, bytes=float(converted), launches=2, shape=kernel.shape))
    elif extra:
        kernels.append(_beside(call, extra, kernel.shape))
    return tuple(kernels)


def _beside(call: OperatorCalls, count: int, shape: str) -> Kernel:
    """What a convolution launches beside itself: the sum of a bias or its gradient, copies to another layout."""
    largest = max(map(tensor_bytes, (*call.inputs, *call.outputs)))
    return Kernel(kind=rules.ELEMENTWISE, bytes=2.0 * largest * count, launches=count, shape=shape)


#: Attention of so many keys takes twice as long as its FLOP say, of more it comes closer to them; and heads under 128
#: wide are slower by this power of their width. Middles of fits to seven GPUs (230 to 640 keys, 0.2 to 0.6).
_VAIN_KEYS: Final = 500
_WIDE_HEAD: Final = 128
_HEAD_POWER: Final = 0.3


def _attended(call: OperatorCalls) -> tuple[float, float]:
    """FLOP of attention that are not masked, and how many times as long it takes."""
    place = 1 if is_backward(call) else 0  # a backward pass has the gradient of its result first
    if len(call.inputs) < place + 2 or len(call.inputs[place].shape) < 3:
        return float(call.flop), 1.0
    queries, keys = (call.inputs[place + index].shape for index in (0, 1))
    flop = call.flop / 2 if call.arguments.get("is_causal") and queries[-2] == keys[-2] else call.flop
    return float(flop), (1 + _VAIN_KEYS / max(1, keys[-2])) * (_WIDE_HEAD / queries[-1]) ** _HEAD_POWER


def _gradients(call: OperatorCalls) -> int:
    """Gradients of images and of weight that a backward pass computes."""
    return max(1, sum(len(one.shape) > 2 for one in call.outputs))


_THREADS_OF_BLOCK: Final = 1024


def _turns(call: OperatorCalls, kind: str) -> float:
    if kind == rules.REDUCTION:
        return float(reads_in_turn(call.inputs[0], call.outputs)[0]) if call.inputs else 0.0
    if kind == rules.ONE_BLOCK:
        scores = call.inputs[int(is_backward(call))]
        reduced = call.inputs[0] if is_backward(call) else next(iter(call.outputs), None)
        in_one_block = reduced is not None and not reduced.shape and len(scores.shape) > 1
        return scores.shape[0] / _THREADS_OF_BLOCK if in_one_block else 0.0
    if kind == rules.RECURRENT and (given := call.arguments):
        length = len(given["batch_sizes"]) or call.inputs[0].shape[given["batch_first"]]  # sizes: of packed sequences
        return float(length * given["num_layers"] * (1 + given["bidirectional"]))
    return 0.0


def _shape(call: OperatorCalls) -> str:
    """The same for calls of one operator with tensors of the same sizes and types."""
    tensors = (f"{one.shape}{one.dtype}" for one in (*call.inputs[:3], *call.outputs[:1]))
    return f"{base_name(call.name)} {' '.join(tensors)}"


_OUTPUT_ONLY: Final = frozenset(("zero_", "fill_", "copy_", "random_", "uniform_", "normal_", "bernoulli_"))
#: One kernel is for the input's gradient, one for those of weight and bias.
_READ_TWICE: Final = ("native_layer_norm_backward", "_fused_rms_norm_backward")
#: Statistics come first, then what is made of them: these read their images once more.
_STATISTICS: Final = {"batch norm": 1, "batch norm backward": 2, "group norm": 1, "group norm backward": 2}
#: Bits of a key that one pass of a radix sort takes; each pass reads and writes keys and their positions.
_BITS: Final = 8
_POSITION_BYTES: Final = 8


def moved_bytes(call: OperatorCalls) -> int:
    """Bytes that one call reads and writes at least: those of its inputs and its outputs."""
    if call.host is not None:
        return _over_bus(call, call.host)
    name = base_name(call.name)
    inputs: Sequence[TensorSpec] = call.inputs
    if name in _OUTPUT_ONLY or name in LOOKED_UP:
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


def read_again(call: OperatorCalls, kind: str) -> int:
    """Bytes that kernels of a class read once more than `moved_bytes` counts: a second pass, passes of a sort."""
    statistics = _STATISTICS.get(kind.replace(", channels last", ""))
    if statistics is not None:
        return sum(map(tensor_bytes, call.inputs[:statistics]))
    if kind == rules.SORT and call.inputs:
        passes = max(1, 8 * item_bytes(call.inputs[0]) // _BITS)
        return 2 * passes * elements(call.inputs[0]) * (item_bytes(call.inputs[0]) + _POSITION_BYTES)
    return 0


def _over_bus(call: OperatorCalls, host: TensorSpec) -> int:
    """Bytes of a copy between host and GPU, in the host's type unless the host waits for it, and so can cast."""
    there = call.outputs[0] if call.outputs else call.inputs[0]
    moved = host if call.arguments.get("non_blocking") else there
    return max(elements(host), elements(there)) * item_bytes(moved)


def converted_bytes(call: OperatorCalls, format_: str) -> int:
    """Bytes that a convolution on tensor cores reads and writes beside its own where images are not channels-last.

    cuDNN's kernels for tensor cores take channels last: what has another layout is converted before, and the result
    after. A backward pass converts for each of its two gradients. Depthwise convolutions use no tensor cores, those of
    size 1 are products of matrices that need no conversion, and TF32 has kernels of either layout.
    """
    tensors = [one for one in (*call.inputs, *call.outputs) if len(one.shape) >= 4]
    if format_ != "16" or len(tensors) < 3 or tensors[0].strides[1] == 1:
        return 0
    images, weight = images_and_weight(call)
    if kind_of(call, format_).startswith(rules.DEPTHWISE) or all(size == 1 for size in weight.shape[2:]):
        return 0
    if not is_backward(call):
        return 2 * (tensor_bytes(images) + tensor_bytes(call.outputs[0]))
    of_images = [one for one in call.outputs if one.shape == images.shape]
    return 2 * (tensor_bytes(images) + sum(map(tensor_bytes, of_images)) + 2 * tensor_bytes(call.inputs[0]))


def tensor_bytes(tensor: TensorSpec) -> int:
    """Bytes of the elements that it has of its own: a broadcast one is read once, a sparse one has parts."""
    if tensor.shape and not tensor.strides:
        return 0
    own = math.prod(size for size, stride in zip(tensor.shape, tensor.strides, strict=True) if stride or size == 0)
    return own * item_bytes(tensor)
