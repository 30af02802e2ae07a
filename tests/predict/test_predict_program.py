"""A program runs unchanged on the virtual device, and computes what it computes on the CPU."""

import copy
import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everyone knows it by
from torch.utils.checkpoint import checkpoint

from steptrace.predict import predict_syncs


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class Masked(nn.Module):
    """Indexing, in-place work, views, a value read on the host, a branch on it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x).clone()
        x[x > 0.5] = 0.25
        x[0] = x[0] * 2
        x.t_().mul_(1.5).t_()
        return x if x.sum().item() > 1e9 else x.relu_() + 0.1


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 3),
    "mlp with batch norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 3)
    ),
    "attention": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), nn.Flatten(),
        nn.Linear(4, 3),
    ),
    "masked": Masked,
}  # fmt: skip
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
}


def train(
    device: str, make: Callable[[], nn.Module], optimizer_of: Callable[..., torch.optim.Optimizer]
) -> list[Tensor]:
    torch.manual_seed(1)
    model = make().to(device)
    optimizer = optimizer_of(model.parameters())
    generator = torch.Generator().manual_seed(2)
    losses = []
    for _ in range(3):
        x = torch.rand(8, 4, generator=generator).to(device)
        y = torch.randint(3, (8,), generator=generator).to(device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach().cpu())
    return [*losses, *(p.detach().cpu() for p in model.parameters())]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_training_gives_the_values_of_a_cpu_run(model, optimizer):
    expected = train("cpu", MODELS[model], OPTIMIZERS[optimizer])
    with predict_syncs() as syncs:
        trained = train("cuda", MODELS[model], OPTIMIZERS[optimizer])
    torch.testing.assert_close(trained, expected)
    assert not syncs.unknown


def test_an_optimizer_made_before_the_move_holds_the_moved_parameters():
    with predict_syncs():
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        weight = model.weight
        model.cuda()
        assert model.weight is weight
        assert model.cpu().cuda().weight is weight
        before = weight.detach().clone()
        model(torch.ones(1, 3, device="cuda")).sum().backward()
        optimizer.step()
        assert (before - weight).flatten().tolist() == pytest.approx([1.0] * 6)


def test_a_tensor_says_that_it_is_on_cuda():
    with predict_syncs():
        x = torch.rand(2, device="cuda")
        assert x.is_cuda
        assert not x.is_cpu
        assert x.device == torch.device("cuda:0")
        assert x.type() == "torch.cuda.FloatTensor"
        assert str(torch.ones(2, device="cuda")) == "tensor([1., 1.], device='cuda:0')"
        assert torch.rand(1).to(x.device).device.type == "cuda"
        with pytest.raises(TypeError, match=r"Use Tensor\.cpu\(\)"):
            x.numpy()
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.rand(2, device="cuda:1")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.rand(2, device="cuda"),
        lambda: torch.rand(2, device=torch.device("cuda", 0)),
        lambda: torch.rand(2, device=0),
        lambda: torch.rand(2).cuda(),
        lambda: torch.rand(2).to("cuda", torch.float64),
        lambda: torch.rand(2).to(torch.rand(1, device="cuda")),
        lambda: nn.Parameter(torch.rand(2)).to(device="cuda"),
        lambda: nn.Linear(2, 2, device="cuda").weight,
        lambda: nn.Linear(2, 2).to("cuda").weight,
        lambda: copy.deepcopy(nn.Linear(2, 2).cuda()).weight,
        lambda: torch.rand(2, device="cuda")[None].expand(3, 2).contiguous(),
        lambda: torch.rand(2, generator=torch.Generator("cuda"), device="cuda"),
    ],
)
def test_ways_to_the_device(make):
    with predict_syncs():
        assert make().is_cuda


def test_default_device_and_device_context():
    with predict_syncs():
        with torch.device("cuda"):
            assert torch.rand(2).is_cuda
        torch.set_default_device("cuda")
        assert torch.rand(2).is_cuda
        assert torch.get_default_device() == torch.device("cuda", 0)
    assert torch.rand(2).device.type == "cpu"


@pytest.mark.filterwarnings(r"ignore:torch.set_default_tensor_type\(\) is deprecated")
def test_legacy_types():
    before = torch.get_default_dtype()
    with predict_syncs():
        x = torch.cuda.FloatTensor(2, 3)
        assert (x.shape, x.dtype, x.is_cuda, torch.cuda.HalfTensor.dtype) == ((2, 3), torch.float32, True, torch.half)
        assert torch.cuda.LongTensor([1, 2]).tolist() == [1, 2]
        assert torch.cuda.FloatTensor().numel() == 0
        assert isinstance(x, torch.cuda.FloatTensor)
        assert not isinstance(x, torch.cuda.LongTensor | torch.FloatTensor)
        assert not isinstance(torch.ones(2), torch.cuda.FloatTensor)
        assert isinstance(torch.ones(2).type(torch.cuda.LongTensor), torch.cuda.LongTensor)
        assert isinstance(x.type(torch.DoubleTensor), torch.DoubleTensor)
        with pytest.raises(TypeError, match=r"expected FloatTensor \(got torch.LongTensor\)"):
            torch.cuda.FloatTensor(torch.ones(2, dtype=torch.long))
        torch.set_default_tensor_type("torch.cuda.DoubleTensor")
        assert isinstance(torch.zeros(2), torch.cuda.DoubleTensor)
        torch.set_default_tensor_type(torch.FloatTensor)
        assert isinstance(torch.zeros(2), torch.FloatTensor)
    assert torch.get_default_dtype() == before


def test_what_was_moved_can_be_brought_back_afterwards():
    with predict_syncs():
        x = torch.arange(3, device="cuda")
    back = (x + 1).cpu()
    assert type(back) is Tensor
    assert back.tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_casts_as_on_cuda(dtype):
    with predict_syncs():
        layer = nn.Linear(3, 2).cuda()
        with torch.autocast("cuda", dtype=dtype):
            assert torch.is_autocast_enabled("cuda")
            logits = layer(torch.rand(2, 3, device="cuda"))
            loss = F.cross_entropy(logits, torch.zeros(2, dtype=torch.long, device="cuda"))
        loss.backward()
        assert (logits.dtype, loss.dtype, layer.weight.grad.dtype) == (dtype, torch.float32, torch.float32)
        assert layer(torch.rand(2, 3, device="cuda")).dtype == torch.float32


@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.to("cuda", torch.float32),
        lambda x: x.to(device="cuda", dtype=torch.float32, memory_format=torch.channels_last),
        lambda x: x.to(torch.ones((), dtype=torch.float32, device="cuda")),
    ],
)
def test_a_copy_in_inference_mode_that_changes_the_type_as_well(move):
    with predict_syncs() as syncs, torch.inference_mode():
        moved = move(torch.ones(1, 2, 3, 3, dtype=torch.float64))
        assert (moved.device.type, moved.dtype) == ("cuda", torch.float32)
        assert {site.kind for site in syncs.sites} == {"h2d_copy"}


def test_checkpointing_recomputes_in_the_backward_phase():
    def block(x: Tensor) -> Tensor:
        return x.sin() * x.max().item() * x.cos()

    with predict_syncs() as syncs:
        x = torch.rand(3, device="cuda", requires_grad=True)
        checkpoint(block, x, use_reentrant=False).sum().backward()
    assert [(site.phase, site.function, site.count) for site in syncs.sites] == [
        ("forward", "block", 1),
        ("backward", "block", 1),
    ]


def test_a_backward_pass_finds_the_device_inside_somebody_s_wrapper(monkeypatch):
    original = torch.autograd.backward
    calls = []

    @functools.wraps(original)
    def counted(*args: object, **kwargs: object) -> None:
        calls.append(args)
        original(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", counted)
    with predict_syncs():
        x = torch.ones(2, device="cuda", requires_grad=True)
        x.register_hook(lambda gradient: gradient + torch.ones(2, device="cuda"))
        torch.autograd.backward(x.sum())
        assert x.grad.tolist() == [2, 2]
    assert len(calls) == 1


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(_context: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_context: object, gradient: Tensor) -> Tensor:
        return gradient @ gradient


def _raise(*_: object) -> None:
    raise LookupError("of the program")


def _with_failing_unpack(x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, _raise):
        return x * x


@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")
@pytest.mark.parametrize(
    ("forward", "error"),
    [
        (lambda x: (x.register_hook(_raise), x * x)[1], "of the program"),
        (lambda x: (x.register_post_accumulate_grad_hook(_raise), x * x)[1], "of the program"),
        (_with_failing_unpack, "of the program"),
        (_Fails.apply, "cannot be multiplied"),
    ],
)
def test_an_error_in_a_backward_pass_reaches_the_program(forward, error):
    with predict_syncs():
        y = forward(torch.ones(2, 3, device="cuda", requires_grad=True))
        with pytest.raises((LookupError, RuntimeError), match=error):
            y.sum().backward()
        z = torch.ones(2, device="cuda", requires_grad=True)
        z.sum().backward()
        assert z.grad.tolist() == [1, 1]


def test_out_and_resizing():
    with predict_syncs():
        out = torch.empty(0, device="cuda")
        torch.add(torch.ones(3, device="cuda"), 1, out=out)
        assert out.shape == (3,)
        assert out.unsqueeze_(0).shape == (1, 3)
        assert out.cpu().tolist() == [[2.0, 2.0, 2.0]]


def test_a_tensor_that_gets_the_data_of_another_has_its_values():
    with predict_syncs():
        weight = nn.Parameter(torch.ones(2, device="cuda"))
        mean = torch.zeros(2, device="cuda")
        weight.data = mean
        mean.add_(3)
        assert weight.tolist() == [3, 3]
        weight.data = weight.data[:1]
        assert (weight + 1).tolist() == [4]
        for moved in (weight.data.cpu(), mean):
            weight.data = moved
            assert isinstance(weight, nn.Parameter)
            assert weight.is_cuda is moved.is_cuda
