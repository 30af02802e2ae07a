"""The CUDA kernels run on the host, thread by thread: indices, tails, reductions, tickets and the order of sums.

What a GPU adds, memory ordering and speed, is not shown here; tests marked `gpu` do that.
"""

import ctypes
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent / "cuda_on_host"
CODES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3, torch.uint8: 4}


class Emulator:
    """The launchers of giou_launch.h over host memory."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        for name in ("loss_forward_c", "loss_backward_c", "box_forward_c", "box_backward_c"):
            getattr(library, name).restype = ctypes.c_char_p
        library.workspace_slot_c.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        library.tickets_are_back.restype = ctypes.c_bool
        for name in ("launches", "workspace_bytes"):
            getattr(library, name).restype = ctypes.c_int64
        self.own = torch.zeros(library.workspace_bytes(), dtype=torch.uint8)

    def device(self, processors: int, *, backwards: bool = False) -> None:
        self.library.emulate(processors, backwards)

    def launches(self) -> int:
        return self.library.launches()

    @staticmethod
    def _pointer(tensor: Tensor) -> ctypes.c_void_p:
        assert tensor.is_contiguous()
        return ctypes.c_void_p(tensor.data_ptr())

    def _boxes(self, predictions: Tensor, targets: Tensor, iterations: int, *, typed: bool) -> list[object]:
        types = [CODES[predictions.dtype], CODES[targets.dtype]] if typed else []
        counts = [ctypes.c_int64(predictions.numel() // 4), ctypes.c_int64(iterations)]
        return [self._pointer(predictions), self._pointer(targets), *types, *counts]

    def loss_forward(
        self, predictions: Tensor, targets: Tensor, iterations: int = 1, *, slot: int | None = 0
    ) -> tuple[Tensor, Tensor]:
        loss = torch.zeros((), dtype=torch.float64 if predictions.dtype == torch.float64 else torch.float32)
        valid = torch.zeros((), dtype=torch.int64)
        boxes = self._boxes(predictions, targets, iterations, typed=True)
        scratch = [slot, None] if slot is not None else [-1, self._pointer(self.own)]
        assert self.library.loss_forward_c(*boxes, *scratch, self._pointer(loss), self._pointer(valid)) is None
        assert self.library.tickets_are_back(self._pointer(self.own)), "a ticket is not back at 0"
        return loss, valid

    def loss_backward(
        self, grad: Tensor, predictions: Tensor, targets: Tensor, valid: Tensor, iterations: int = 1
    ) -> Tensor:
        gradient = torch.full_like(predictions, torch.nan)
        boxes = self._boxes(predictions, targets, iterations, typed=True)
        assert (
            self.library.loss_backward_c(*boxes, self._pointer(grad), self._pointer(valid), self._pointer(gradient))
            is None
        )
        return gradient

    def box_forward(
        self, predictions: Tensor, targets: Tensor, *, conditional: bool, iterations: int = 1
    ) -> tuple[Tensor, Tensor]:
        values, valid = (torch.full(predictions.shape[:-1], torch.nan) for _ in range(2))
        boxes = self._boxes(predictions, targets, iterations, typed=False)
        assert self.library.box_forward_c(*boxes, conditional, self._pointer(values), self._pointer(valid)) is None
        return values, valid

    def box_backward(
        self, grad: Tensor, predictions: Tensor, targets: Tensor, *, conditional: bool, iterations: int = 1
    ) -> Tensor:
        gradient = torch.full_like(predictions, torch.nan)
        boxes = self._boxes(predictions, targets, iterations, typed=False)
        assert self.library.box_backward_c(*boxes, conditional, self._pointer(grad), self._pointer(gradient)) is None
        return gradient


@pytest.fixture(scope="module")
def compiled(build, tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("emulator")
    source = (build.SOURCES / "giou_kernels.cu").read_text()
    # The letters that name a GPU's float registers to asm name other registers here.
    (folder / "kernels_for_host.cu").write_text(source.replace('"+f"(', '"+x"(').replace('"+d"(', '"+x"('))
    output = folder / "emulator.so"
    include = [f"-I{path}" for path in (folder, HERE, build.SOURCES)]
    # A GPU faults on a wide access to an address that is not a multiple of its width; the sanitizer reports it.
    # Without optimisation: that takes longer than all that is run here.
    flags = ["-std=c++20", *build.CLAMP, "-O0", "-ffp-contract=off", "-fsanitize=alignment", "-fPIC", "-shared"]
    sources = [str(HERE / "harness.cpp"), "-x", "c++", str(build.SOURCES / "giou_workspace.cu")]
    build.run(["g++", *flags, *include, *sources, "-o", str(output)])
    return Emulator(ctypes.CDLL(str(output)))


@pytest.fixture
def emulator(compiled):
    compiled.device(2)
    yield compiled
    compiled.device(2)


def test_every_pair_of_types(emulator, ops, dtypes, make_boxes, agree):
    emulator.device(1)
    predictions, targets = make_boxes(3, 1701, dtypes=dtypes)  # several tiles a warp, the last of them no whole one
    loss, valid = emulator.loss_forward(predictions, targets)
    expected_loss, expected_valid = torch.ops.steptrace_giou.giou_loss(predictions, targets)
    assert ops.IMPLEMENTATION.name == "library"
    assert valid == expected_valid
    grad = torch.full_like(loss, 3.0)
    gradient = emulator.loss_backward(grad, predictions, targets, valid)
    expected = torch.ops.steptrace_giou.giou_loss_backward(grad, predictions, targets, valid)
    agree((loss, gradient), (expected_loss, expected), dtypes[0])


# Around a warp, a tile (16 to 128 boxes) and the most that 4 blocks of a multiprocessor take in one turn, of one tile a
# warp (4,096 uint8 boxes, 1,024 float32 ones) and of several (16,384 and 4,096).
@pytest.mark.parametrize("boxes", [0, 1, 31, 33, 127, 128, 129, 257, 1025, 4095, 4097, 5003, 16_384, 16_385, 20_001])
@pytest.mark.parametrize("target", [torch.uint8, torch.float32], ids=["uint8", "float32"])
def test_every_size(emulator, ops, make_boxes, boxes, target):
    emulator.device(1)
    predictions, targets = make_boxes(boxes, dtypes=(torch.float32, target))
    loss, valid = emulator.loss_forward(predictions, targets)
    expected_loss, expected_valid = torch.ops.steptrace_giou.giou_loss(predictions, targets)
    assert ops.IMPLEMENTATION.name == "library"
    assert valid == expected_valid
    torch.testing.assert_close(loss, expected_loss, rtol=0, atol=2e-6)
    gradient = emulator.loss_backward(torch.ones(()), predictions, targets, valid)
    expected = torch.ops.steptrace_giou.giou_loss_backward(torch.ones(()), predictions, targets, valid)
    torch.testing.assert_close(gradient, expected)


def test_views_that_begin_anywhere(emulator, make_boxes, dtypes, capfd):
    emulator.device(1)
    predictions, targets = make_boxes(1097, dtypes=dtypes)
    loss, valid = emulator.loss_forward(predictions, targets)
    gradient = emulator.loss_backward(torch.ones_like(loss), predictions, targets, valid)
    # Corners from anywhere, and whole boxes that begin at no multiple of 16 bytes.
    for p_offset, t_offset in ((1, 0), (0, 1), (3, 2), (0, 4), (4, 4)):
        moved = []
        for boxes, offset in ((predictions, p_offset), (targets, t_offset)):
            room = torch.zeros(boxes.numel() + offset, dtype=boxes.dtype)
            room[offset:] = boxes.flatten()
            moved.append(room[offset:].view_as(boxes))
        assert [t.data_ptr() % 16 for t in moved] == [
            offset * t.element_size() % 16 for offset, t in zip((p_offset, t_offset), moved, strict=True)
        ]
        moved_loss, moved_valid = emulator.loss_forward(*moved)
        assert torch.equal(moved_loss, loss)
        assert moved_valid == valid
        assert torch.equal(emulator.loss_backward(torch.ones_like(loss), *moved, moved_valid), gradient)
    assert "misaligned address" not in capfd.readouterr().err


def test_the_order_of_blocks_changes_no_bit(emulator, make_boxes):
    predictions, targets = make_boxes(2500)
    losses = []
    for backwards in (False, True, False):
        emulator.device(2, backwards=backwards)
        losses.append(emulator.loss_forward(predictions, targets)[0])
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(losses[0], losses[2])


def test_each_pass_is_one_launch(emulator, make_boxes):
    predictions, targets = make_boxes(700)
    before = emulator.launches()
    loss, valid = emulator.loss_forward(predictions, targets)
    assert emulator.launches() == before + 1
    emulator.loss_backward(torch.ones_like(loss), predictions, targets, valid)
    assert emulator.launches() == before + 2


def test_padding_is_never_read(emulator, make_boxes):
    predictions, targets = make_boxes(300)
    spoiled = predictions.masked_fill((targets[..., 3] == 0)[:, None], torch.nan)
    assert spoiled.isnan().any()
    loss, valid = emulator.loss_forward(spoiled, targets)
    assert torch.equal(loss, emulator.loss_forward(predictions, targets)[0])
    gradient = emulator.loss_backward(torch.ones_like(loss), spoiled, targets, valid)
    assert not gradient.isnan().any()


@pytest.mark.parametrize("iterations", [2, 5])
def test_iterations(emulator, make_boxes, iterations):
    predictions, targets = make_boxes(300)
    loss, valid = emulator.loss_forward(predictions, targets)
    heavy, _ = emulator.loss_forward(predictions, targets, iterations)
    torch.testing.assert_close(heavy, loss, rtol=0, atol=2e-6)
    gradient = emulator.loss_backward(torch.ones(()), predictions, targets, valid)
    torch.testing.assert_close(
        emulator.loss_backward(torch.ones(()), predictions, targets, valid, iterations), gradient, rtol=1e-4, atol=1e-8
    )


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("boxes", [1, 256, 700])
def test_the_articles_kernels(emulator, reference, make_boxes, *, conditional, boxes):
    predictions, targets = make_boxes(boxes)
    values, valid = emulator.box_forward(predictions, targets, conditional=conditional)
    leaf = predictions.clone().requires_grad_()
    expected, expected_valid = reference.box_giou(leaf, targets)
    assert torch.equal(valid, expected_valid)
    torch.testing.assert_close(values, expected.detach())
    grad = torch.linspace(-1, 1, boxes)
    (expected_gradient,) = torch.autograd.grad(expected, leaf, grad)
    gradient = emulator.box_backward(grad, predictions, targets, conditional=conditional)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


def test_a_workspace_of_the_callers_serves_as_well(emulator, make_boxes):
    predictions, targets = make_boxes(2500)
    first = emulator.loss_forward(predictions, targets, slot=3)
    for slot in (3, None, None):
        assert emulator.loss_forward(predictions, targets, slot=slot) == first


def test_each_stream_of_each_device_and_graph_has_its_own_workspace_until_none_is_left(emulator):
    slot_of = emulator.library.workspace_slot_c
    places = [(device, stream, graph) for device in (0, 1) for stream in (0, 1) for graph in (0, 1, 2)]
    slots = [slot_of(*place) for place in places]
    assert sorted(slots) == list(range(len(places)))
    assert [slot_of(*place) for place in places] == slots
    left = emulator.library.workspaces_there_are() - len(places)
    assert [slot_of(0, 0, 100 + graph) for graph in range(left + 2)] == [
        *range(len(places), left + len(places)),
        -1,
        -1,
    ]
    assert [slot_of(*place) for place in places] == slots
