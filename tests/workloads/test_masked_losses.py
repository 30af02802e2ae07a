import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steptrace.engine.step_recorders import OpLineRecorder
from steptrace.workloads.masked_losses import (
    BooleanMaskLoss,
    IgnoreIndexLoss,
    ReferenceLoss,
    SecondNonzeroLoss,
    SortLoss,
    WhereLoss,
)
from steptrace.workloads.segmentation import RandomMasks

VARIANTS = [BooleanMaskLoss, SecondNonzeroLoss, WhereLoss, SortLoss, IgnoreIndexLoss]
BATCHES = [tuple(torch.stack(part) for part in zip(*(RandomMasks(2, 6)[i] for i in range(2)), strict=True))]
BATCHES += RandomMasks(2, 6).edge_cases()


@pytest.fixture(params=[labels for _, labels in BATCHES], ids=["random", *(f"edge case {i}" for i in range(1, 7))])
def target(request):
    """Labels [2, 6, 6] of each kind, as a copy: a loss that wrote into them must not change what later tests see."""
    return request.param.clone()


every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)


def loss_and_gradient(loss, logits, target):
    logits = logits.clone().requires_grad_()
    value = loss(logits, target)
    value.backward()
    return value.item(), logits.grad


def by_hand(logits, target, ignore=-1, background=9):
    """The definition once more, pixel by pixel in Python's own floats."""
    losses = []
    labels = set()
    for n, h, w in torch.cartesian_prod(*(torch.arange(size) for size in target.shape)).reshape(-1, 3).tolist():
        label = target[n, h, w].item()
        label = ignore if label == background else label
        labels.add(label)
        if label != ignore:
            scores = logits[n, :, h, w].tolist()
            losses.append(math.log(sum(math.exp(score) for score in scores)) - scores[label])
    return sum(losses) / len(losses) if len(labels) >= 2 and losses else 0.0


def test_the_reference_follows_the_definition(target):
    logits = torch.randn(*target.shape[:1], 10, *target.shape[1:], dtype=torch.float64)
    assert ReferenceLoss()(logits, target).item() == pytest.approx(by_hand(logits, target), rel=1e-12)


def test_the_reference_computes_in_float64_whatever_it_is_given():
    assert ReferenceLoss()(torch.randn(1, 10, 4, 4), BATCHES[0][1][:1, :4, :4]).dtype == torch.float64


@every_variant
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_variants_agree_with_the_reference_in_loss_and_gradient(variant, target, dtype, tolerance):
    logits = 3 * torch.randn(2, 10, 6, 6, dtype=dtype)
    value, gradient = loss_and_gradient(variant(), logits, target)
    expected, expected_gradient = loss_and_gradient(ReferenceLoss(), logits.double(), target)
    assert value == pytest.approx(expected, rel=tolerance)
    error = (gradient.double() - expected_gradient).norm()
    assert error <= tolerance * expected_gradient.norm()


@every_variant
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_variants_agree_for_any_shape_and_labels(variant, data):
    n, h, w = (data.draw(st.integers(1, 4)) for _ in range(3))
    classes = data.draw(st.integers(2, 6))
    # Few different labels, so that the special cases come up.
    palette = data.draw(st.lists(st.integers(-1, classes - 1), min_size=1, max_size=3))
    labels = data.draw(st.lists(st.sampled_from(palette), min_size=n * h * w, max_size=n * h * w))
    target = torch.tensor(labels).reshape(n, h, w)
    logits = torch.randn(n, classes, h, w, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    options = {"background": data.draw(st.integers(0, classes - 1))}
    value, gradient = loss_and_gradient(variant(**options), logits, target)
    expected, expected_gradient = loss_and_gradient(ReferenceLoss(**options), logits.double(), target)
    assert value == pytest.approx(expected, rel=1e-5)
    assert torch.allclose(gradient.double(), expected_gradient, rtol=1e-4, atol=1e-7)


@every_variant
@pytest.mark.parametrize("label", [-1, 9, 4])
def test_fewer_than_two_labels_give_exactly_no_loss_and_no_gradient(variant, label):
    value, gradient = loss_and_gradient(variant(), torch.randn(2, 10, 3, 3), torch.full((2, 3, 3), label))
    assert value == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))


@every_variant
def test_the_ignored_label_can_be_any_other(variant):
    logits = torch.randn(2, 10, 6, 6)
    target = BATCHES[0][1].clone()
    with_255 = torch.where(target == -1, 255, target)
    assert torch.equal(variant(ignore_index=255)(logits, with_255), variant()(logits, target))


@every_variant
def test_the_caller_s_labels_stay_as_they_were(variant, target):
    before = target.clone()
    variant()(torch.randn(2, 10, 6, 6), target)
    assert torch.equal(target, before)


@every_variant
def test_every_operation_stands_in_a_label(variant, target):
    logits = torch.randn(2, 10, 6, 6)
    with OpLineRecorder() as recorder:
        variant()(logits, target)
    assert recorder.lines
    assert [line.op for line in recorder.lines if line.label is None] == []


@pytest.mark.parametrize(
    ("variant", "waiting"),
    [
        (BooleanMaskLoss, ["aten::nonzero", "aten::_unique2", "aten::index", "aten::index"]),
        (WhereLoss, ["aten::_unique2", "aten::index", "aten::index"]),
        (SortLoss, ["aten::index", "aten::index"]),
        (IgnoreIndexLoss, []),
    ],
)
def test_each_variant_drops_one_operation_whose_size_depends_on_the_data(variant, waiting):
    sized_by_data = {"aten::nonzero", "aten::_unique2", "aten::index", "aten::masked_select", "aten::item"}
    sized_by_data |= {"aten::_local_scalar_dense", "aten::is_nonzero"}
    with OpLineRecorder() as recorder:
        variant()(torch.randn(2, 10, 6, 6), BATCHES[0][1].clone())
    assert [line.op for line in recorder.lines if line.op in sized_by_data] == waiting
