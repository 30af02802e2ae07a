"""The CUDA operators on a GPU: streams, graphs, devices, sizes beyond an int32, and no wait for the device."""

import warnings

import pytest
import torch
from torch import Tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(autouse=True)
def cuda_library(ops):
    if "cuda" not in ops.IMPLEMENTATION.devices:
        pytest.skip(f"the library has no CUDA kernels: {ops.IMPLEMENTATION.reason}")


@pytest.fixture
def no_sync():
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            # A process's first change of the mode warns that it does not see everything.
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu_values
def test_agrees_with_the_twin(ops, reference, dtypes, make_boxes, loss_and_gradient, agree):
    predictions, targets = make_boxes(37, 301, dtypes=dtypes)
    loss, gradient = loss_and_gradient(ops, predictions.cuda(), targets.cuda())
    agree((loss.cpu(), gradient.cpu()), loss_and_gradient(reference, predictions, targets), dtypes[0])


@pytest.mark.gpu_values
@pytest.mark.parametrize("boxes", [0, 1, 31, 33, 256, 257, 100_003, 1_000_003])
def test_sizes(ops, make_boxes, loss_and_gradient, boxes):
    predictions, targets = make_boxes(boxes)
    loss, gradient = loss_and_gradient(ops, predictions.cuda(), targets.cuda())
    expected_loss, expected_gradient = loss_and_gradient(ops, predictions, targets)
    torch.testing.assert_close(loss.cpu(), expected_loss, rtol=0, atol=2e-6)
    torch.testing.assert_close(gradient.cpu(), expected_gradient, rtol=1e-4, atol=1e-5 / max(boxes, 1))


@pytest.mark.gpu_values
def test_gradcheck(ops, make_boxes):
    predictions, targets = (boxes.cuda() for boxes in make_boxes(3, 8, dtypes=(torch.float64, torch.float64)))
    assert torch.autograd.gradcheck(lambda p: ops.giou_loss(p, targets), predictions.requires_grad_())


@pytest.mark.gpu_values
def test_same_bits_every_time(ops, make_boxes, loss_and_gradient):
    predictions, targets = (boxes.cuda() for boxes in make_boxes(1024, 256))
    first = loss_and_gradient(ops, predictions, targets)
    for _ in range(20):
        again = loss_and_gradient(ops, predictions, targets)
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])


@pytest.mark.usefixtures("no_sync")
def test_never_waits_for_the_device(ops):
    predictions = torch.ones(64, 256, 4, device="cuda", requires_grad=True)
    targets = torch.ones(64, 256, 4, device="cuda")
    ops.giou_loss(predictions, targets).backward()
    ops.kernel_loss(predictions, targets).backward()


@pytest.mark.gpu_values
def test_many_streams_at_once(ops, make_boxes):
    streams = [torch.cuda.Stream() for _ in range(8)]
    inputs = [tuple(boxes.cuda() for boxes in make_boxes(256, 256, seed=seed)) for seed in range(8)]
    expected = [ops.giou_loss(*boxes) for boxes in inputs]
    torch.cuda.synchronize()
    results: list[list[Tensor]] = [[] for _ in streams]
    for _ in range(50):
        for stream, boxes, losses in zip(streams, inputs, results, strict=True):
            with torch.cuda.stream(stream):
                losses.append(ops.giou_loss(*boxes))
    torch.cuda.synchronize()
    for losses, want in zip(results, expected, strict=True):
        assert all(torch.equal(loss, want) for loss in losses)


@pytest.mark.gpu_values
def test_graph_replays_with_new_numbers(ops, make_boxes):
    predictions, targets = (boxes.cuda() for boxes in make_boxes(64, 256))
    predictions.requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            predictions.grad = None
            ops.giou_loss(predictions, targets).backward()
    torch.cuda.current_stream().wait_stream(side)
    predictions.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = ops.giou_loss(predictions, targets)
        loss.backward()
    for seed in range(3):
        new_p, new_t = make_boxes(64, 256, seed=seed)
        with torch.no_grad():
            predictions.copy_(new_p)
        targets.copy_(new_t)
        # Eager work between and during replays must not share the graph's ticket.
        eager_leaf = predictions.detach().clone().requires_grad_()
        graph.replay()
        eager = ops.giou_loss(eager_leaf, targets)
        eager.backward()
        assert torch.equal(loss, eager)
        assert predictions.grad is not None
        assert torch.equal(predictions.grad, eager_leaf.grad)


@pytest.mark.gpu_values
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, raised by the compiler itself
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(ops, make_boxes, mode):
    torch.compiler.reset()
    compiled = torch.compile(lambda p, t: ops.giou_loss(p * 2, t), fullgraph=True, mode=mode)
    predictions, targets = (boxes.cuda() for boxes in make_boxes(64, 256))
    for _ in range(4):
        leaf, plain = (predictions.clone().requires_grad_() for _ in range(2))
        loss = compiled(leaf, targets)
        loss.backward()
        expected = ops.giou_loss(plain * 2, targets)
        expected.backward()
        assert torch.equal(loss, expected)
        torch.testing.assert_close(leaf.grad, plain.grad)


@pytest.mark.gpu_values
def test_opcheck(ops, make_boxes):
    predictions, targets = (boxes.cuda() for boxes in make_boxes(3, 5, dtypes=(torch.bfloat16, torch.uint8)))
    assert ops.IMPLEMENTATION.name == "library"
    results = torch.library.opcheck(torch.ops.steptrace_giou.giou_loss.default, (predictions.requires_grad_(), targets))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.gpu_values
def test_views_that_begin_anywhere(ops, make_boxes, dtypes):
    predictions, targets = (boxes.cuda() for boxes in make_boxes(1097, dtypes=dtypes))
    expected = ops.giou_loss(predictions, targets)
    for offset in (1, 4):  # from any corner, and from any box: both are read otherwise than from a multiple of 16 bytes
        moved = []
        for boxes in (predictions, targets):
            room = torch.zeros(boxes.numel() + offset, dtype=boxes.dtype, device="cuda")
            room[offset:] = boxes.flatten()
            moved.append(room[offset:].view_as(boxes))
        assert torch.equal(ops.giou_loss(*moved), expected)


def test_another_device_than_the_current(ops, make_boxes, loss_and_gradient):
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device only")
    predictions, targets = make_boxes(64, 256)
    expected = loss_and_gradient(ops, predictions.to("cuda:0"), targets.to("cuda:0"))
    with torch.cuda.device(0):
        loss, gradient = loss_and_gradient(ops, predictions.to("cuda:1"), targets.to("cuda:1"))
        assert torch.cuda.current_device() == 0
    torch.testing.assert_close(loss.cpu(), expected[0].cpu())
    torch.testing.assert_close(gradient.cpu(), expected[1].cpu())


def test_devices_must_agree(ops):
    with pytest.raises(RuntimeError, match="got predictions on cuda:0 and targets on cpu, expected one device"):
        ops.giou_loss(torch.zeros(1, 4, device="cuda"), torch.zeros(1, 4))


@pytest.mark.gpu_values
def test_more_elements_than_an_int32_counts(ops):
    boxes = 2**29 + 7  # 2^31 + 28 elements
    free, _ = torch.cuda.mem_get_info()
    if free < 20 * 2**30:
        pytest.skip("needs 20 GiB of free GPU memory")
    targets = torch.zeros(boxes, 4, dtype=torch.uint8, device="cuda")
    predictions = torch.zeros(boxes, 4, dtype=torch.bfloat16, device="cuda")
    for position in (0, 2**29 - 1, boxes - 1):
        targets[position] = torch.tensor([0, 0, 2, 2], dtype=torch.uint8)
        predictions[position] = torch.tensor([1.0, 1.0, 3.0, 3.0])
    leaf = predictions.requires_grad_()
    loss = ops.giou_loss(leaf, targets)
    loss.backward()
    assert loss.item() == pytest.approx(1 - (1 / 7 - 2 / 9), abs=1e-6)
    assert leaf.grad[-1].any()
    assert leaf.grad.count_nonzero() == leaf.grad[-1].count_nonzero() * 3
