"""The GIoU losses that are operators of the extension in `ext/giou`: the article's kernels, and one fused operator.

They compute what `giou_losses.py` defines, on padded boxes. The extension's Python package `steptrace_giou` is imported
when a loss is made: as installed or from a folder in `python_path`, else the one that belongs to this steptrace.
"""

import importlib
import importlib.util
import sys
from typing import Any, Final

from torch import Tensor, nn
from torch.profiler import record_function

from steptrace.errors import TrainError
from steptrace.operator_costs import OperatorCost, operator_cost
from steptrace.root import ROOT

#: The extension's Python side.
EXTENSION: Final = ROOT / "ext" / "giou" / "python"

_OPERATORS: Final = ("giou_loss", "giou_loss_backward", "box_giou", "box_giou_backward")


#: Boxes that a warp computes together: it takes as long for one as for all of them.
_WARP: Final = 32
#: FLOP of one box by csrc/giou_math.h. A peak counts two FLOP for each instruction, and a division is about 8 of them.
#: Forward there are 36 instructions and 2 divisions, backward 90 and 6.
_FORWARD: Final = 2 * (36 + 2 * 8)
_BACKWARD: Final = 2 * (90 + 6 * 8)
_CORNERS: Final = 4


def _computed(targets: Tensor, *, skips: bool) -> int:
    """The number of boxes that warps compute: all, or only whole warps with a box that counts; all without values."""
    boxes = targets.numel() // _CORNERS
    if not skips or targets.is_meta:
        return boxes
    counts = targets.reshape(-1, _CORNERS)[:, -1] > 0
    warps = nn.functional.pad(counts, (0, -boxes % _WARP)).view(-1, _WARP)
    return _WARP * int(warps.any(dim=1).sum())


def _cost(each: int, computed: int, iterations: int, moved: float) -> OperatorCost:
    return OperatorCost(flop=each * computed * iterations, bytes=moved, arithmetic="float32")


def _size(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@operator_cost("steptrace_giou::box_giou")
def box_cost(predictions: Tensor, targets: Tensor, conditional: bool = False, iterations: int = 1) -> OperatorCost:  # noqa: FBT001, FBT002 - the schema's order
    """The cost of the article's kernel: with its branch, a warp none of whose boxes counts computes nothing."""
    computed = _computed(targets, skips=conditional)
    written = 2 * _size(predictions) // _CORNERS
    read = computed * _CORNERS * predictions.element_size()
    return _cost(_FORWARD, computed, iterations, _size(targets) + read + written)


@operator_cost("steptrace_giou::box_giou_backward")
def box_backward_cost(
    grad: Tensor,
    predictions: Tensor,
    targets: Tensor,
    conditional: bool = False,  # noqa: FBT001, FBT002 - the schema's order
    iterations: int = 1,
) -> OperatorCost:
    """The cost of its gradient."""
    computed = _computed(targets, skips=conditional)
    read = computed * _CORNERS * predictions.element_size()
    return _cost(_BACKWARD, computed, iterations, _size(grad, targets, predictions) + read)


@operator_cost("steptrace_giou::giou_loss")
def loss_cost(predictions: Tensor, targets: Tensor, iterations: int = 1) -> OperatorCost:
    """The cost of the fused loss, which always skips boxes that do not count."""
    computed = _computed(targets, skips=True)
    read = computed * _CORNERS * predictions.element_size()
    return _cost(_FORWARD, computed, iterations, _size(targets) + read)


@operator_cost("steptrace_giou::giou_loss_backward")
def loss_backward_cost(
    grad: Tensor, predictions: Tensor, targets: Tensor, valid: Tensor, iterations: int = 1
) -> OperatorCost:
    """The cost of its gradient."""
    computed = _computed(targets, skips=True)
    read = computed * _CORNERS * predictions.element_size()
    return _cost(_BACKWARD, computed, iterations, _size(grad, valid, targets, predictions) + read)


class _ExtensionLoss(nn.Module):
    """What the extension's losses share.

    Args:
        iterations: how often the GIoU of the same boxes is computed; the loss is the mean over the repetitions.
        require_library: whether to refuse to run without the compiled operators. If false, the extension warns and runs
            its twin in plain PyTorch instead: the same loss, but not at all the same time.
    """

    def __init__(self, *, iterations: int = 1, require_library: bool = True) -> None:
        super().__init__()
        self.iterations = iterations
        self.require_library = require_library
        self.ops = _import_ops()

    @property
    def predict_rules(self) -> list[dict[str, Any]]:
        """The operators' syncs, for predictions: none, since each only launches work on the current stream."""
        launches = {"syncs": 0, "source": "ext/giou/csrc/giou_kernels.cu", "reason": "launches and returns"}
        return [{"op": f"steptrace_giou::{name}", **launches} for name in _OPERATORS]

    def check_library(self, output: Tensor) -> None:
        """Raise `TrainError` if the compiled operators are demanded and there are none for the device of `output`."""
        if not self.require_library or self.ops.serves(output):
            return
        try:
            self.ops.IMPLEMENTATION.require(output.device.type)
        except RuntimeError as error:
            raise TrainError(
                f"the extension is not built ({error})",
                where="loss",
                expected=f"compiled operators for {output.device.type}",
                next_step="read results/prepared/extension/prepare.log; "
                "loss.require_library=false runs the slow twin in Python instead",
            ) from error


class KernelLoss(_ExtensionLoss):
    """The article's way: predictions and boxes cast to float32, a kernel with one thread per box, two sums.

    Args:
        conditional: whether the kernel leaves padding out by a branch, or computes it and discards the result.
        iterations: as in `GIoULoss`.
        require_library: whether to refuse to run the twin in place of the compiled operators.
    """

    def __init__(self, *, conditional: bool = False, iterations: int = 1, require_library: bool = True) -> None:
        super().__init__(iterations=iterations, require_library=require_library)
        self.conditional = conditional

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the scalar loss of predictions [N, B, 4] against boxes [N, B, 4] padded with zeros."""
        self.check_library(output)
        with record_function("cast"):
            output = output.float()
            target = target.float()
        with record_function("box giou"):
            giou, real = self.ops.box_giou(output, target, conditional=self.conditional, iterations=self.iterations)
        with record_function("mean"):
            loss: Tensor = 1 - giou.sum() / real.sum().clamp(min=1)
            return loss


class FusedLoss(_ExtensionLoss):
    """One operator from the padded boxes to the loss, and one for its gradient, in the dtypes that the tensors have."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the scalar loss of predictions [N, B, 4] against boxes [N, B, 4] padded with zeros."""
        self.check_library(output)
        with record_function("fused"):
            loss: Tensor = self.ops.giou_loss(output, target, iterations=self.iterations)
            return loss


def _import_ops() -> Any:
    if importlib.util.find_spec("steptrace_giou") is None and EXTENSION.is_dir():
        sys.path.append(str(EXTENSION))
    try:
        return importlib.import_module("steptrace_giou.ops")
    except ModuleNotFoundError as error:
        raise TrainError(
            f"the extension's Python package cannot be imported ({error})",
            where="loss",
            expected=f"steptrace_giou, in python_path or in {EXTENSION}",
            next_step="run from a checkout, or name the package's folder in python_path",
        ) from error
