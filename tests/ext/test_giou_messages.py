"""What a wrong call is told: the same sentence by the compiled operator, by its twin and while tracing."""

import pytest
import torch

CASES = {
    "not four coordinates": (
        lambda: (torch.zeros(2, 3), torch.zeros(2, 3)),
        "giou_loss: got predictions of shape (2, 3), expected (..., 4): x1, y1, x2, y2 of one box a row",
    ),
    "no coordinates at all": (
        lambda: (torch.zeros(()), torch.zeros(())),
        "giou_loss: got predictions of shape (), expected (..., 4): x1, y1, x2, y2 of one box a row",
    ),
    "shapes differ": (
        lambda: (torch.zeros(2, 3, 4), torch.zeros(2, 5, 4)),
        "giou_loss: got targets of shape (2, 5, 4), expected the predictions' shape (2, 3, 4)",
    ),
    "one dimension": (
        lambda: (torch.zeros(4), torch.zeros(5)),
        "giou_loss: got targets of shape (5,), expected the predictions' shape (4,)",
    ),
    "whole-number predictions": (
        lambda: (torch.zeros(2, 4, dtype=torch.int32), torch.zeros(2, 4)),
        "giou_loss: got predictions of dtype int32, expected float32, bfloat16, float16 or float64",
    ),
    "uint8 predictions": (
        lambda: (torch.zeros(2, 4, dtype=torch.uint8), torch.zeros(2, 4, dtype=torch.uint8)),
        "giou_loss: got predictions of dtype uint8, expected float32, bfloat16, float16 or float64",
    ),
    "targets wider than predictions": (
        lambda: (torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.float64)),
        (
            "giou_loss: got targets of dtype float64 with predictions of dtype float32, "
            "expected the predictions' dtype, float32 or uint8"
        ),
    ),
    "signed targets": (
        lambda: (torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.int64)),
        (
            "giou_loss: got targets of dtype int64 with predictions of dtype float32, "
            "expected the predictions' dtype, float32 or uint8"
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_message(giou, case):
    make, expected = CASES[case]
    with pytest.raises(RuntimeError) as raised:
        giou.giou_loss(*make())
    assert str(raised.value) == expected


@pytest.mark.parametrize("case", CASES)
def test_message_while_tracing(ops, case):
    from torch._subclasses.fake_tensor import FakeTensorMode

    make, expected = CASES[case]
    with FakeTensorMode(), pytest.raises(RuntimeError) as raised:
        ops.giou_loss(*make())
    assert str(raised.value) == expected


@pytest.mark.parametrize("iterations", [0, -3])
def test_iterations(giou, iterations):
    with pytest.raises(RuntimeError) as raised:
        giou.giou_loss(torch.zeros(1, 4), torch.zeros(1, 4), iterations=iterations)
    assert str(raised.value) == f"giou_loss: got iterations={iterations}, expected at least 1"


def test_the_articles_kernel_knows_float32_only(giou):
    with pytest.raises(RuntimeError) as raised:
        giou.box_giou(torch.zeros(1, 4, dtype=torch.bfloat16), torch.zeros(1, 4))
    assert str(raised.value) == (
        "box_giou: got predictions of dtype bfloat16 and targets of dtype float32, expected float32 for both"
    )


def test_backward_checks_what_it_is_given(ops):
    backward = torch.ops.steptrace_giou.giou_loss_backward
    boxes = torch.zeros(2, 4)
    count = torch.tensor(0)
    assert ops.IMPLEMENTATION.path is not None
    with pytest.raises(
        RuntimeError, match=r"got grad of shape \(2,\) and dtype float32 on cpu, expected \(\) and float32 on cpu"
    ):
        backward(torch.zeros(2), boxes, boxes, count)
    with pytest.raises(
        RuntimeError, match=r"got valid of shape \(\) and dtype float32 on cpu, expected \(\) and int64 on cpu"
    ):
        backward(torch.tensor(1.0), boxes, boxes, torch.tensor(1.0))
