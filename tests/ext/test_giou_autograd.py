"""The operator as torch sees it: derivatives, schema, tracing, compilation."""

import pytest
import torch

F64 = (torch.float64, torch.float64)


@pytest.mark.parametrize("iterations", [1, 3])
def test_gradcheck(giou, make_boxes, iterations):
    predictions, targets = make_boxes(3, 8, dtypes=F64)
    assert torch.autograd.gradcheck(
        lambda p: giou.giou_loss(p, targets, iterations=iterations), predictions.requires_grad_()
    )


def test_gradient_at_kinks_is_torchs(ops, reference):
    # Ties of max and min, a clamp at its bound, an empty union: a difference quotient says nothing there.
    corners = torch.cartesian_prod(*[torch.arange(3.0)] * 4)
    predictions = corners.repeat_interleave(len(corners), 0)
    targets = corners.repeat(len(corners), 1)
    ours, theirs = (predictions.clone().requires_grad_() for _ in range(2))
    (ops.giou_loss(ours, targets) * len(targets)).backward()
    (reference.giou_loss(theirs, targets) * len(targets)).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5)


def test_gradient_is_scaled_by_what_comes_from_above(ops, make_boxes):
    predictions, targets = make_boxes(4, 40)
    leaf = predictions.requires_grad_()
    (plain,) = torch.autograd.grad(ops.giou_loss(leaf, targets), leaf)
    (scaled,) = torch.autograd.grad(1024 * ops.giou_loss(leaf, targets), leaf)
    torch.testing.assert_close(scaled, 1024 * plain)


def test_a_call_takes_the_short_way_to_the_same_bits(ops, make_boxes):
    predictions, targets = make_boxes(4, 40)
    leaf = predictions.requires_grad_()
    short = ops.giou_loss(leaf, targets)
    registered = torch.ops.steptrace_giou.giou_loss(leaf, targets)[0]
    # An own node of the graph, without the one that torch wraps around a registered formula.
    assert [type(loss.grad_fn).__name__ for loss in (short, registered)] == [
        "_LossBackward",
        "GeneratedBackwardFor_steptrace_giou_giou_loss_defaultBackward",
    ]
    assert torch.equal(short, registered)
    assert torch.equal(*(torch.autograd.grad(loss, leaf)[0] for loss in (short, registered)))
    with torch.no_grad():
        assert ops.giou_loss(leaf, targets).grad_fn is None


def test_targets_get_no_gradient(ops, make_boxes):
    predictions, targets = make_boxes(4, 40)
    targets.requires_grad_()
    ops.giou_loss(predictions.requires_grad_(), targets).backward()
    assert targets.grad is None
    assert predictions.grad is not None


def test_second_derivative_is_refused(ops, make_boxes):
    predictions, targets = make_boxes(2, 3)
    leaf = predictions.requires_grad_()
    (gradient,) = torch.autograd.grad(ops.giou_loss(leaf, targets), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        gradient.sum().backward()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of opcheck, in PyTorch 2.14
@pytest.mark.parametrize(
    "dtypes",
    [(torch.float32, torch.float32), (torch.float32, torch.uint8), (torch.bfloat16, torch.uint8), F64],
    ids=str,
)
def test_opcheck_loss(ops, dtypes, make_boxes):
    assert ops.IMPLEMENTATION.name == "library"
    predictions, targets = make_boxes(3, 5, dtypes=dtypes)
    forward = torch.ops.steptrace_giou.giou_loss.default
    backward = torch.ops.steptrace_giou.giou_loss_backward.default
    results = torch.library.opcheck(forward, (predictions.clone().requires_grad_(), targets))
    assert set(results.values()) == {"SUCCESS"}
    loss, valid = forward(predictions, targets)
    results = torch.library.opcheck(backward, (torch.ones_like(loss), predictions, targets, valid, 2))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of opcheck, in PyTorch 2.14
@pytest.mark.parametrize(("shape", "conditional"), [((0,), False), ((3, 5), False), ((3, 5), True)])
def test_opcheck_box(ops, make_boxes, shape, *, conditional):
    assert ops.IMPLEMENTATION.name == "library"
    predictions, targets = make_boxes(*shape)
    arguments = (predictions.clone().requires_grad_(), targets, conditional, 2)
    results = torch.library.opcheck(torch.ops.steptrace_giou.box_giou.default, arguments)
    assert set(results.values()) == {"SUCCESS"}
    grad = torch.ones(shape)
    results = torch.library.opcheck(
        torch.ops.steptrace_giou.box_giou_backward.default, (grad, predictions, targets, conditional, 2)
    )
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("function", ["giou_loss", "kernel_loss"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_in_one_graph(ops, make_boxes, function, *, dynamic):
    torch.compiler.reset()
    loss_of = getattr(ops, function)
    compiled = torch.compile(lambda p, t: 2 * loss_of(p * 1.5, t), fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for images in (3, 5):
        predictions, targets = make_boxes(images, 7)
        ours, theirs = (predictions.clone().requires_grad_() for _ in range(2))
        loss = compiled(ours, targets)
        expected = 2 * loss_of(theirs * 1.5, targets)
        loss.backward()
        expected.backward()
        assert torch.equal(loss, expected)
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.slow  # 20 s of processor time for what the test above shows without code generation
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, raised by the compiler itself
def test_compiles_with_inductor(ops, make_boxes):
    torch.compiler.reset()
    compiled = torch.compile(lambda p, t: ops.giou_loss(p * 1.5, t), fullgraph=True)
    predictions, targets = make_boxes(3, 7)
    ours, theirs = (predictions.clone().requires_grad_() for _ in range(2))
    compiled(ours, targets).backward()
    ops.giou_loss(theirs * 1.5, targets).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_under_autocast_takes_what_the_network_gives(ops, make_boxes):
    _, targets = make_boxes(6, 10, dtypes=(torch.float32, torch.uint8))
    layer = torch.nn.Linear(8, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        predictions = layer(torch.ones(6, 8)).view(6, 10, 4)
        loss = ops.giou_loss(predictions, targets)
    assert predictions.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    loss.backward()
    assert layer.weight.grad is not None
