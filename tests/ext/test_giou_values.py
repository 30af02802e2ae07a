"""What the GIoU loss is: worked by hand, and the compiled operator against its twin over everything that may come."""

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor


def one(*corners: float) -> Tensor:
    return torch.tensor([corners], dtype=torch.float32)


# Target 0, 0, 2, 2 (area 4) in each case.
@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        ((0, 0, 2, 2), 1.0),  # equal
        ((1, 1, 3, 3), 1 / 7 - (9 - 7) / 9),  # overlap 1, union 7, hull 9
        ((2, 0, 4, 2), 0.0),  # touching sides: no overlap, hull = union
        ((4, 0, 6, 2), -(12 - 8) / 12),  # disjoint; two negative sides would have made an overlap of 4
        ((4, 4, 6, 6), -(36 - 8) / 36),  # disjoint in both directions
        ((2, 2, 0, 0), 0.0),  # reversed: empty, within the target's hull
        ((1, 0, 1, 2), 0.0),  # degenerate, inside
        ((0.5, 0.5, 1.5, 1.5), 1 / 4),  # inside
    ],
)
def test_giou_worked_by_hand(giou, prediction, expected):
    target = one(0, 0, 2, 2)
    assert giou.giou_loss(one(*prediction), target).item() == pytest.approx(1 - expected, abs=1e-6)
    values, valid = giou.box_giou(one(*prediction), target)
    assert values.tolist() == pytest.approx([expected], abs=1e-6)
    assert valid.tolist() == [1.0]


def test_mean_over_boxes_that_count(giou):
    predictions = torch.cat([one(0, 0, 2, 2), one(4, 0, 6, 2), one(5, 5, 9, 9)])
    targets = torch.cat([one(0, 0, 2, 2), one(0, 0, 2, 2), one(0, 0, 0, 0)])
    assert giou.giou_loss(predictions, targets).item() == pytest.approx(1 - (1 - 1 / 3) / 2, abs=1e-6)


@pytest.mark.parametrize("shape", [(3, 5), (0,), (0, 5), (3, 0), ()])
def test_no_box_that_counts(giou, loss_and_gradient, shape):
    loss, gradient = loss_and_gradient(giou, torch.full((*shape, 4), torch.inf), torch.zeros(*shape, 4))
    assert loss.item() == 1.0
    assert gradient.shape == (*shape, 4)
    assert not gradient.any()


def test_padding_neither_reads_nor_learns(giou, loss_and_gradient, make_boxes):
    predictions, targets = make_boxes(4, 9)
    padding = targets[..., 3] == 0
    spoiled = predictions.masked_fill(padding[..., None], torch.nan)
    loss, gradient = loss_and_gradient(giou, spoiled, targets)
    clean_loss, clean_gradient = loss_and_gradient(giou, predictions, targets)
    assert 0 < padding.sum() < padding.numel()
    assert torch.equal(loss, clean_loss)
    assert torch.equal(gradient, clean_gradient)
    assert not gradient[padding].any()


def test_no_clamp_hides_a_nan_or_an_overflow(giou):
    target = one(0, 0, 2, 2)
    for position in range(4):
        prediction = one(0, 0, 2, 2)
        prediction[0, position] = torch.nan
        assert giou.giou_loss(prediction, target).isnan(), position
    assert giou.giou_loss(one(-1e30, -1e30, 1e30, 1e30), target).isnan()


def test_agrees_over_dtypes(ops, reference, dtypes, make_boxes, loss_and_gradient, agree):
    boxes = make_boxes(7, 301, dtypes=dtypes)
    loss, gradient = loss_and_gradient(ops, *boxes)
    assert loss.dtype == (torch.float64 if dtypes[0] == torch.float64 else torch.float32)
    assert gradient.dtype == dtypes[0]
    agree((loss, gradient), loss_and_gradient(reference, *boxes), dtypes[0])  # of the same types


# Around the tile (128), the chunk (2048) and nothing in particular; in one and in several dimensions.
@pytest.mark.parametrize(
    "shape",
    [(1,), (127,), (128,), (129,), (2047,), (2048,), (2049,), (1, 1), (3, 7), (17, 1, 13), (2, 3, 4, 5), (33, 257)],
)
@pytest.mark.parametrize("valid", [0.02, 0.6, 1.0])
def test_agrees_over_shapes(ops, reference, shape, valid, make_boxes, loss_and_gradient, agree):
    boxes = make_boxes(*shape, valid=valid)
    agree(loss_and_gradient(ops, *boxes), loss_and_gradient(reference, *boxes), torch.float32)


# Small whole numbers make equal, touching and degenerate boxes likely; the order of corners is left to chance; the
# largest have areas just below the end of float32.
COORDINATES = st.one_of(
    st.integers(0, 3).map(float),
    st.floats(-10, 300, width=32),
    st.floats(-(2.0**59), 2.0**59, width=32),
)
BOXES = st.lists(st.lists(COORDINATES, min_size=8, max_size=8), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(rows=BOXES)
def test_agrees_on_any_boxes(ops, reference, tolerance, loss_and_gradient, rows):
    predictions, targets = torch.tensor(rows).split(4, -1)
    loss, gradient = loss_and_gradient(ops, predictions, targets)
    expected_loss, expected_gradient = loss_and_gradient(reference, predictions, targets)
    limit = tolerance(torch.float32)
    torch.testing.assert_close(loss, expected_loss, rtol=0, atol=limit.loss)
    assert 0 <= loss <= 2 + limit.loss
    # No coordinate's gradient has a part larger than the hull's longest side over the union; parts may cancel.
    low, high = torch.minimum(predictions, targets).amin(-1), torch.maximum(predictions, targets).amax(-1)
    union = _area(predictions).maximum(_area(targets)).clamp(min=reference.EPSILON)
    scale = ((high - low) / union)[:, None].expand_as(gradient)
    assert ((gradient - expected_gradient).abs() <= limit.gradient * scale).all()


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def test_per_box_values_are_the_twins_to_the_bit(ops, reference, make_boxes):
    predictions, targets = make_boxes(11, 301)
    for conditional in (False, True):
        values, valid = ops.box_giou(predictions, targets, conditional=conditional)
        expected, expected_valid = reference.box_giou(predictions, targets)
        assert torch.equal(valid, expected_valid)
        assert torch.equal(values, expected)


def strided_views(x: Tensor) -> dict[str, Tensor]:
    wide = torch.zeros(*x.shape[:-1], 6, dtype=x.dtype)
    wide[..., 1:5] = x
    spread = torch.zeros(2 * x.shape[0], *x.shape[1:], dtype=x.dtype)
    spread[::2] = x
    shifted = torch.zeros(x.numel() + 1, dtype=x.dtype)
    shifted[1:] = x.flatten()
    return {
        "columns": wide[..., 1:5],
        "every other image": spread[::2],
        "transposed": x.transpose(0, 1).contiguous().transpose(0, 1),
        "off by one element": shifted[1:].view_as(x),
        "expanded": x[:1].expand_as(x),
    }


@pytest.mark.parametrize("name", ["columns", "every other image", "transposed", "off by one element", "expanded"])
@pytest.mark.parametrize("target_dtype", [torch.float32, torch.uint8])
def test_views(ops, loss_and_gradient, make_boxes, name, target_dtype):
    predictions, targets = make_boxes(6, 50, dtypes=(torch.float32, target_dtype))
    view_p, view_t = strided_views(predictions)[name], strided_views(targets)[name]
    loss, gradient = loss_and_gradient(ops, view_p, view_t)
    expected_loss, expected_gradient = loss_and_gradient(ops, view_p.contiguous(), view_t.contiguous())
    assert torch.equal(loss, expected_loss)
    assert torch.equal(gradient, expected_gradient)


def test_number_of_threads_changes_no_bit(ops, make_boxes, loss_and_gradient):
    predictions, targets = make_boxes(37, 499)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            results.append(loss_and_gradient(ops, predictions, targets))
    finally:
        torch.set_num_threads(threads)
    for loss, gradient in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(gradient, results[0][1])


@pytest.mark.parametrize("iterations", [1, 2, 3, 64])
def test_iterations_are_a_load_and_change_no_result(giou, make_boxes, loss_and_gradient, iterations):
    predictions, targets = make_boxes(3, 70)
    loss, gradient = loss_and_gradient(giou, predictions, targets, iterations=iterations)
    expected_loss, expected_gradient = loss_and_gradient(giou, predictions, targets)
    torch.testing.assert_close(loss, expected_loss, rtol=0, atol=2e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("conditional", [False, True])
def test_the_articles_kernel_gives_the_same_loss(ops, make_boxes, *, conditional):
    predictions, targets = make_boxes(5, 300, dtypes=(torch.bfloat16, torch.uint8))
    ours, theirs = (predictions.clone().requires_grad_() for _ in range(2))
    loss = ops.kernel_loss(theirs, targets, conditional=conditional)
    expected = ops.giou_loss(ours, targets)
    torch.testing.assert_close(loss, expected, rtol=0, atol=2e-6)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(theirs.grad, ours.grad)


def test_half_conversions_are_torchs(ops):
    # Every 16-bit pattern whose area float32 can hold, once as a side; gradients come back rounded as torch rounds.
    for dtype in (torch.float16, torch.bfloat16):
        every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        finite = every[(every.float().abs() < 1e15) & ~every.float().isnan()]
        boxes = torch.stack([torch.zeros_like(finite), torch.zeros_like(finite), finite.abs(), finite.abs()], -1)
        loss, gradient = _per_box(ops, boxes)
        expected_loss, expected_gradient = _per_box(ops, boxes.float())
        assert torch.equal(loss, expected_loss)
        torch.testing.assert_close(gradient, expected_gradient.to(dtype), rtol=0, atol=0)


def _per_box(ops: ModuleType, boxes: Tensor) -> tuple[Tensor, Tensor]:
    target = torch.tensor([0.0, 0.0, 3.0, 5.0]).expand_as(boxes)
    leaf = boxes.clone().requires_grad_()
    # Times the number of boxes, so that gradients use the whole range of the dtype.
    loss = ops.giou_loss(leaf, target) * len(boxes)
    loss.backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad
