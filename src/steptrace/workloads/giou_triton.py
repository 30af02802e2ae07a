"""The GIoU loss in Triton, on padded boxes. Importing this module needs the package `triton`.

Like the fused operator of the extension: one launch forward and one backward, predictions and targets read as they are,
arithmetic in float32, predictions of boxes that do not count never loaded, no value that travels to the host. The
definition is that of `giou_losses.py`. Launches on several streams at once would share one ticket, so use one stream.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.profiler import record_function

PER_PROCESSOR = 4  # programs per multiprocessor
SIZE = tl.constexpr(512)  # boxes that a program takes at a time
MAX = tl.constexpr(1024)  # programs of a launch, at most
EPS = tl.constexpr(1e-5)

_workspaces: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}


@triton.jit
def _load(boxes, rows, mask):  # type: ignore[no-untyped-def]
    """The four corners of some rows, as float32. A row is read as a whole, hence the two splits."""
    tile = tl.load(boxes + rows[:, None] * 4 + tl.arange(0, 4)[None, :], mask=mask[:, None], other=0).to(tl.float32)
    x, y = tl.split(tl.reshape(tile, (rows.shape[0], 2, 2)))
    x1, x2 = tl.split(x)
    y1, y2 = tl.split(y)
    return x1, y1, x2, y2


@triton.jit
def _side(low, high):  # type: ignore[no-untyped-def]
    return tl.maximum(high - low, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _picks_larger(a, b):  # type: ignore[no-untyped-def]
    """Derivative of max(a, b) by a: a tie gives each side half, as in PyTorch."""
    return tl.where(a > b, 1.0, tl.where(a == b, 0.5, 0.0))


@triton.jit
def _forward(predictions, targets, boxes, sums, counts, ticket, loss, valid):  # type: ignore[no-untyped-def] # noqa: PLR0913
    total = tl.zeros((SIZE,), tl.float32)
    count = tl.zeros((SIZE,), tl.int32)
    start = tl.program_id(0) * SIZE
    while start < boxes:  # Triton's interpreter, which the tests run, takes no such range under numpy 2
        rows = (start + tl.arange(0, SIZE)).to(tl.int64)
        tx1, ty1, tx2, ty2 = _load(targets, rows, rows < boxes)
        counted = ty2 > 0
        px1, py1, px2, py2 = _load(predictions, rows, counted)
        inter = _side(tl.maximum(px1, tx1), tl.minimum(px2, tx2)) * _side(tl.maximum(py1, ty1), tl.minimum(py2, ty2))
        both = _side(px1, px2) * _side(py1, py2) + _side(tx1, tx2) * _side(ty1, ty2)
        union = tl.maximum(both - inter, EPS, propagate_nan=tl.PropagateNan.ALL)
        hull = _side(tl.minimum(px1, tx1), tl.maximum(px2, tx2)) * _side(tl.minimum(py1, ty1), tl.maximum(py2, ty2))
        hull = tl.maximum(hull, EPS, propagate_nan=tl.PropagateNan.ALL)
        total += tl.where(counted, inter / union - (hull - union) / hull, 0.0)
        count += counted.to(tl.int32)
        start += tl.num_programs(0) * SIZE
    tl.store(sums + tl.program_id(0), tl.sum(total))
    tl.store(counts + tl.program_id(0), tl.sum(count))
    # The program that draws the last ticket adds up, in the order of the programs: the same bits on every run.
    if tl.atomic_add(ticket, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        program = tl.arange(0, MAX)
        there = program < tl.num_programs(0)
        all_boxes = tl.sum(tl.load(counts + program, mask=there, other=0, cache_modifier=".cg").to(tl.int64))
        whole = tl.sum(tl.load(sums + program, mask=there, other=0.0, cache_modifier=".cg").to(tl.float64))
        tl.store(loss, (1.0 - whole / tl.maximum(all_boxes, 1).to(tl.float64)).to(tl.float32))
        tl.store(valid, all_boxes)
        tl.store(ticket, 0)


@triton.jit
def _backward(predictions, targets, boxes, grad, valid, gradient):  # type: ignore[no-untyped-def]
    scale = -tl.load(grad) / tl.maximum(tl.load(valid), 1).to(tl.float32)
    start = tl.program_id(0) * SIZE
    while start < boxes:
        rows = (start + tl.arange(0, SIZE)).to(tl.int64)
        tx1, ty1, tx2, ty2 = _load(targets, rows, rows < boxes)
        counted = ty2 > 0
        px1, py1, px2, py2 = _load(predictions, rows, counted)
        w, h = px2 - px1, py2 - py1
        iw, ih = tl.minimum(px2, tx2) - tl.maximum(px1, tx1), tl.minimum(py2, ty2) - tl.maximum(py1, ty1)
        hw, hh = tl.maximum(px2, tx2) - tl.minimum(px1, tx1), tl.maximum(py2, ty2) - tl.minimum(py1, ty1)
        inter = tl.maximum(iw, 0.0) * tl.maximum(ih, 0.0)
        raw_union = tl.maximum(w, 0.0) * tl.maximum(h, 0.0) + _side(tx1, tx2) * _side(ty1, ty2) - inter
        raw_hull = tl.maximum(hw, 0.0) * tl.maximum(hh, 0.0)
        union, hull = tl.maximum(raw_union, EPS), tl.maximum(raw_hull, EPS)
        by_area = tl.where(raw_union >= EPS, 1.0 / hull - inter / union / union, 0.0)
        by_inter = 1.0 / union - by_area
        by_hull = tl.where(raw_hull >= EPS, -(union / hull / hull), 0.0)
        by_w = tl.where(w >= 0, by_area * tl.maximum(h, 0.0), 0.0)
        by_h = tl.where(h >= 0, by_area * tl.maximum(w, 0.0), 0.0)
        by_iw = tl.where(iw >= 0, by_inter * tl.maximum(ih, 0.0), 0.0)
        by_ih = tl.where(ih >= 0, by_inter * tl.maximum(iw, 0.0), 0.0)
        by_hw = tl.where(hw >= 0, by_hull * tl.maximum(hh, 0.0), 0.0)
        by_hh = tl.where(hh >= 0, by_hull * tl.maximum(hw, 0.0), 0.0)
        x1 = -by_w - by_iw * _picks_larger(px1, tx1) - by_hw * _picks_larger(tx1, px1)
        y1 = -by_h - by_ih * _picks_larger(py1, ty1) - by_hh * _picks_larger(ty1, py1)
        x2 = by_w + by_iw * _picks_larger(tx2, px2) + by_hw * _picks_larger(px2, tx2)
        y2 = by_h + by_ih * _picks_larger(ty2, py2) + by_hh * _picks_larger(py2, ty2)
        corners = tl.reshape(tl.join(tl.join(x1, x2), tl.join(y1, y2)), (SIZE, 4))
        corners = tl.where(counted[:, None], corners * scale, 0.0)
        at = gradient + rows[:, None] * 4 + tl.arange(0, 4)[None, :]
        tl.store(at, corners.to(gradient.dtype.element_ty), mask=(rows < boxes)[:, None])
        start += tl.num_programs(0) * SIZE


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, predictions: Tensor, targets: Tensor) -> Tensor:
        loss = torch.empty((), dtype=torch.float32, device=predictions.device)
        valid = torch.empty((), dtype=torch.int64, device=predictions.device)
        boxes = predictions.numel() // 4
        grid = (_programs(boxes, predictions.device),)
        _forward[grid](predictions, targets, boxes, *_workspace(predictions.device), loss, valid)
        ctx.save_for_backward(predictions, targets, valid)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        predictions, targets, valid = ctx.saved_tensors
        gradient = torch.empty_like(predictions)
        boxes = predictions.numel() // 4
        grid = (_programs(boxes, predictions.device),)
        _backward[grid](predictions, targets, boxes, grad, valid, gradient)
        return gradient, None


class TritonLoss(nn.Module):
    """`fused` written in Triton: one launch forward and one backward."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the scalar loss of predictions [N, B, 4] against boxes [N, B, 4] padded with zeros."""
        with record_function("triton"):
            return giou_loss(output.contiguous(), target.contiguous())


def giou_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    """As `steptrace_giou.ops.giou_loss`, for contiguous float32, bfloat16 or float16 predictions."""
    loss: Tensor = _Loss.apply(predictions, targets)  # type: ignore[no-untyped-call]
    return loss


def _programs(boxes: int, device: torch.device) -> int:
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
    return max(1, min(-(-boxes // int(SIZE.value)), PER_PROCESSOR * processors, int(MAX.value)))


def _workspace(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Partial sums, partial counts, and the ticket, which each launch leaves at 0 again."""
    if device not in _workspaces:
        sums = torch.empty(MAX.value, dtype=torch.float32, device=device)
        ticket = torch.zeros(1, dtype=torch.int32, device=device)
        _workspaces[device] = sums, torch.empty_like(sums, dtype=torch.int32), ticket
    return _workspaces[device]
