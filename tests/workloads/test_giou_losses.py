import shutil
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steptrace.errors import TrainError
from steptrace.workloads.giou_data import ConcatenatedBoxes, matched
from steptrace.workloads.giou_kernels import FusedLoss, KernelLoss
from steptrace.workloads.giou_losses import CompiledLoss, ConcatLoss, LoopLoss, PaddedLoss, ReferenceLoss
from steptrace.workloads.giou_published import (
    PublishedConcatLoss,
    PublishedKernelArithmetic,
    PublishedLoopLoss,
    PublishedPaddedLoss,
)

BOXES = 6  # predicted for an image

built = pytest.mark.usefixtures("extension")

#: Name -> the loss, and the form of the boxes it takes.
VARIANTS = {
    "loop": (LoopLoss, "list"),
    "concat": (ConcatLoss, "concatenated"),
    "padding": (PaddedLoss, "padded"),
    "kernel": (KernelLoss, "padded"),
    "kernel_conditional": (lambda **kwargs: KernelLoss(conditional=True, **kwargs), "padded"),
    "fused": (FusedLoss, "padded"),
}
PUBLISHED = {
    "loop": (PublishedLoopLoss, "list"),
    "concat": (PublishedConcatLoss, "concatenated"),
    "padding": (PublishedPaddedLoss, "padded"),
    "kernel_arithmetic": (PublishedKernelArithmetic, "padded"),
}


def in_form(boxes, form):
    """Lists of boxes per image, as a batch of that form."""
    images = [torch.tensor(image, dtype=torch.uint8).view(-1, 4) for image in boxes]
    if form == "list":
        return images
    if form == "concatenated":
        return ConcatenatedBoxes(torch.cat(images), tuple(map(len, images)))
    padded = torch.zeros(len(images), BOXES, 4, dtype=torch.uint8)
    for row, image in zip(padded, images, strict=True):
        row[: len(image)] = image
    return padded


def answer(loss, prediction, target):
    prediction = prediction.clone().requires_grad_()
    value = loss(prediction, target)
    value.backward()
    return value.detach(), prediction.grad


def random_case(images=16, seed=0):
    random = torch.Generator().manual_seed(seed)
    boxes = []
    for image in range(images):
        first = torch.randint(0, 200, (image % BOXES, 2), generator=random)
        second = first + torch.randint(1, 55, first.shape, generator=random)
        boxes.append(torch.cat([first, second], dim=1).tolist())
    return 100 * torch.randn(images, BOXES, 4, generator=random) + 100, boxes


@st.composite
def boxes_of_an_image(draw):
    boxes = []
    for _ in range(draw(st.integers(0, 3))):
        x1, y1 = draw(st.integers(0, 255)), draw(st.integers(0, 255))
        boxes.append([x1, y1, draw(st.integers(x1, 255)), draw(st.integers(max(y1, 1), 255))])
    return boxes


# Quarters of a pixel: equal, reversed, empty and touching boxes turn up often, and float32 represents all of them.
corners = st.integers(-400, 1600).map(lambda quarters: quarters / 4)


@built
@settings(max_examples=30, deadline=None)
@given(
    boxes=st.lists(boxes_of_an_image(), min_size=1, max_size=3),
    numbers=st.lists(corners, min_size=3 * BOXES * 4, max_size=3 * BOXES * 4),
    copied=st.booleans(),
)
def test_every_variant_computes_the_reference_s_loss_and_gradient(boxes, numbers, copied):
    prediction = torch.tensor(numbers[: len(boxes) * BOXES * 4]).view(len(boxes), BOXES, 4)
    if copied:  # predictions that are right
        for ours, image in zip(prediction, boxes, strict=True):
            ours[: len(image)] = torch.tensor(image).view(-1, 4)
    loss, gradient = answer(ReferenceLoss(), prediction, in_form(boxes, "list"))
    for name, (kind, form) in VARIANTS.items():
        got, got_gradient = answer(kind(), prediction, in_form(boxes, form))
        assert got.dtype == torch.float32, name
        assert abs(got.item() - loss.item()) <= 2e-6, name
        assert torch.linalg.vector_norm(got_gradient - gradient) <= 1e-4 * gradient.norm() + 1e-6, name


def test_the_reference_takes_every_form():
    prediction, boxes = random_case()
    answers = [answer(ReferenceLoss(), prediction, in_form(boxes, form)) for form in ("list", "concatenated", "padded")]
    assert len({loss.item() for loss, _ in answers}) == 1
    assert torch.equal(answers[0][1], answers[1][1])
    assert torch.equal(answers[0][1], answers[2][1])


@built
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_loss_by_hand(variant):
    """Overlap 1, union 4 + 4 - 1 = 7, hull 9; the other prediction hits its box exactly: GIoU is 1/7 - 2/9, and 1."""
    kind, form = VARIANTS[variant]
    prediction = torch.zeros(2, BOXES, 4)
    prediction[0, 0] = torch.tensor([0.0, 0.0, 2.0, 2.0])
    prediction[1, 0] = torch.tensor([10.0, 20.0, 200.0, 250.0])
    target = in_form([[[1, 1, 3, 3]], [[10, 20, 200, 250]]], form)
    assert kind()(prediction, target).item() == pytest.approx(1 - (1 / 7 - 2 / 9 + 1) / 2, rel=1e-6)


@built
@pytest.mark.parametrize("variant", VARIANTS)
def test_without_a_box_the_loss_is_one_and_moves_nothing(variant):
    kind, form = VARIANTS[variant]
    loss, gradient = answer(kind(), torch.randn(2, BOXES, 4), in_form([[], []], form))
    assert loss.item() == 1
    assert not gradient.any()


@built
@pytest.mark.parametrize("variant", VARIANTS)
def test_repeating_the_arithmetic_changes_no_answer(variant):
    kind, form = VARIANTS[variant]
    prediction, boxes = random_case()
    loss, gradient = answer(kind(), prediction, in_form(boxes, form))
    again, again_gradient = answer(kind(iterations=5), prediction, in_form(boxes, form))
    assert again.item() == pytest.approx(loss.item(), rel=1e-6)
    assert torch.allclose(again_gradient, gradient, rtol=1e-4, atol=1e-8)


@built
@pytest.mark.parametrize("variant", VARIANTS)
def test_half_precision_predictions_are_computed_with_in_float32(variant):
    kind, form = VARIANTS[variant]
    prediction, boxes = random_case()
    prediction = prediction.bfloat16()
    loss, gradient = answer(kind(), prediction, in_form(boxes, form))
    expected, expected_gradient = answer(ReferenceLoss(), prediction.double(), in_form(boxes, form))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert gradient.dtype == torch.bfloat16
    assert torch.linalg.vector_norm(gradient.double() - expected_gradient) <= 2**-8 * expected_gradient.norm()


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
def test_the_compiled_loss_is_the_padded_one():
    prediction, boxes = random_case()
    loss, gradient = answer(CompiledLoss(), prediction, in_form(boxes, "padded"))
    expected, expected_gradient = answer(PaddedLoss(), prediction, in_form(boxes, "padded"))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert torch.allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-8)


def operators_of(variant, images):
    """The operators of forward and backward in a trace on the CPU."""
    prediction, boxes = random_case(images)
    kind, form = VARIANTS[variant]
    loss = kind()
    target = in_form(boxes, form)
    # Events are of one cycle only either way; without acc_events PyTorch 2.11 warns of that.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profiler:
        answer(loss, prediction, target)
    return sum(event.name.startswith(("aten::", "steptrace_giou::")) for event in profiler.events())


@built
def test_each_variant_launches_fewer_operators_than_the_one_before():
    """The article's order of launches."""
    counts = {name: operators_of(name, 32) for name in ("loop", "concat", "padding", "kernel", "fused")}
    assert counts["loop"] > 5 * counts["concat"]
    assert counts["concat"] > 1.5 * counts["padding"]
    assert counts["padding"] > 2 * counts["kernel"]
    assert counts["kernel"] > counts["fused"] > 0


@built
@pytest.mark.parametrize("variant", ["padding", "kernel", "fused"])
def test_the_padded_variants_launch_as_many_operators_for_any_batch(variant):
    assert operators_of(variant, 4) == operators_of(variant, 32)


def published_loss_of_one_box(variant, corners, box):
    kind, form = PUBLISHED[variant]
    prediction = torch.zeros(1, BOXES, 4)
    prediction[0, 0] = torch.tensor(corners)
    return kind()(prediction, in_form([[box]], form)).item()


@pytest.mark.parametrize("variant", PUBLISHED)
def test_published_areas_wrap_around_but_the_kernel_s_and_that_returns_what_is_to_be_maximised(variant):
    """20 x 20 in uint8 is 144: union 400 + 144 - 400, and GIoU of a perfect hit 400/144 - (400 - 144)/400."""
    expected = 1 if variant == "kernel_arithmetic" else 400 / 144 - 256 / 400
    got = published_loss_of_one_box(variant, [10.0, 10.0, 30.0, 30.0], [10, 10, 30, 30])
    assert got == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("variant", PUBLISHED)
def test_published_boxes_that_lie_apart_get_an_intersection(variant):
    """Sides -10 and -10 make an intersection of 100, so the union is 4 - 96 and becomes 1e-5."""
    got = published_loss_of_one_box(variant, [20.0, 20.0, 22.0, 22.0], [8, 8, 10, 10])
    assert got == pytest.approx(100 / 1e-5, rel=1e-5)


@pytest.mark.parametrize("variant", PUBLISHED)
def test_no_published_variant_computes_the_loss(variant):
    kind, form = PUBLISHED[variant]
    prediction, boxes = random_case()
    loss, gradient = answer(kind(), prediction, in_form(boxes, form))
    expected, expected_gradient = answer(ReferenceLoss(), prediction, in_form(boxes, form))
    assert abs(loss - expected) > 0.1 * expected
    assert torch.linalg.vector_norm(gradient - expected_gradient) > 0.1 * expected_gradient.norm()


def test_published_variants_do_not_agree_with_each_other():
    prediction, boxes = random_case()
    losses = {name: kind()(prediction, in_form(boxes, form)).item() for name, (kind, form) in PUBLISHED.items()}
    assert losses["loop"] == pytest.approx(losses["concat"], rel=1e-5)
    assert losses["loop"] == pytest.approx(losses["padding"], rel=1e-5)
    assert losses["kernel_arithmetic"] != pytest.approx(losses["padding"], rel=1e-3)


@built
@pytest.mark.parametrize("kind", [KernelLoss, FusedLoss])
def test_without_the_library_a_variant_is_refused_unless_the_twin_is_asked_for(kind):
    from steptrace_giou import reference
    from steptrace_giou.library import Implementation

    twin = SimpleNamespace(
        IMPLEMENTATION=Implementation("reference", frozenset(), None, "nothing was built"),
        box_giou=reference.box_giou,
        giou_loss=reference.giou_loss,
        serves=lambda _: False,
    )
    prediction, boxes = random_case()
    target = in_form(boxes, "padded")
    refused = kind()
    allowed = kind(require_library=False)
    refused.ops = allowed.ops = twin
    with pytest.raises(TrainError, match=r"(?s)nothing was built.*prepare\.log"):
        refused(prediction, target)
    assert allowed(prediction, target).item() == pytest.approx(kind()(prediction, target).item(), rel=1e-6)


def test_a_missing_python_package_is_one_message(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "steptrace_giou.ops", None)
    with pytest.raises(TrainError, match="steptrace_giou"):
        FusedLoss()


def test_predictions_beyond_the_real_boxes_count_for_nothing():
    prediction, boxes = random_case()
    target = in_form(boxes, "padded")
    _, gradient = answer(PaddedLoss(), prediction, target)
    counted = [len(theirs) for _, theirs in matched(prediction, target)]
    assert all(not image[count:].any() for image, count in zip(gradient, counted, strict=True))
    assert gradient.any()
