"""Recurrent layers on the virtual device: values and gradients of the CPU, launches of cuDNN."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from steptrace.estimate.launches import launches
from steptrace.estimate.work import kernels_of
from steptrace.predict import predict_syncs

LAYERS: dict[str, Any] = {
    "lstm": lambda: nn.LSTM(4, 5),
    "batch first": lambda: nn.LSTM(4, 5, batch_first=True),
    "projected, both ways": lambda: nn.LSTM(4, 5, 2, bidirectional=True, proj_size=2),
    "gru": lambda: nn.GRU(4, 5, 2),
    "rnn without bias": lambda: nn.RNN(4, 5, bias=False),
    "relu": lambda: nn.RNN(4, 5, nonlinearity="relu"),
}


def computed(device: str, kind: str, *, packed: bool) -> list[Tensor]:
    """Outputs, states and gradients."""
    torch.manual_seed(0)
    layer = LAYERS[kind]().to(device)
    given = torch.rand(3, 6, 4).to(device).requires_grad_()
    sequence = pack_padded_sequence(given, torch.tensor([3, 3, 2, 2, 1, 1])) if packed else given
    made, states = layer(sequence)
    made = made.data if packed else made
    states = states if isinstance(states, tuple) else (states,)
    (made.square().sum() + sum(state.sum() for state in states)).backward()
    return [one.detach().cpu() for one in (made, *states, given.grad, *(p.grad for p in layer.parameters()))]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    ("kind", "packed"),
    [*((kind, False) for kind in LAYERS), ("lstm", True), ("projected, both ways", True), ("gru", True)],
)
def test_values_and_gradients_are_those_of_the_cpu(kind, *, packed):
    on_cpu = computed("cpu", kind, packed=packed)
    with predict_syncs() as syncs:
        on_gpu = computed("cuda", kind, packed=packed)
        names = Counter(call.name for call in syncs.operators if "rnn" in call.name)
    assert names == {"aten._cudnn_rnn.default": 1, "aten._cudnn_rnn_backward.default": 1}
    for one, other in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(one, other)


def launched(run: Any) -> Counter[str]:
    """Launches by operator."""
    with predict_syncs() as syncs:
        run()
        counts: Counter[str] = Counter()
        for call in syncs.operators:
            counts[call.name.split(".")[1]] += launches(call) * call.calls
        return +counts


@pytest.mark.parametrize(
    ("options", "copies"), [({}, 4), ({"num_layers": 2, "bidirectional": True}, 16), ({"bias": False}, 2)]
)
def test_weights_are_copied_into_a_buffer_when_a_layer_moves_and_when_a_program_asks(options, copies):
    moved = launched(lambda: nn.GRU(4, 5, **options).cuda())
    assert moved == {"_to_copy": copies, "zeros": 1, "copy_": copies}

    def asked() -> None:
        layer = nn.GRU(4, 5, **options).cuda()
        layer.flatten_parameters()

    assert launched(asked) == {"_to_copy": copies, "zeros": 2, "copy_": 2 * copies}


def test_weights_that_cudnn_does_not_take_are_not_copied():
    assert "copy_" not in launched(lambda: nn.GRU(4, 5, dtype=torch.bfloat16).cuda())

    def without_cudnn() -> None:
        with torch.backends.cudnn.flags(enabled=False):
            nn.GRU(4, 5).cuda()

    assert "copy_" not in launched(without_cudnn)


@pytest.mark.parametrize("make", [nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_of_a_cell_are_those_of_the_cpu(make, *, bias):
    def computed(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        cell = make(4, 5, bias=bias).to(device)
        given = torch.rand(3, 4).to(device).requires_grad_()
        state = cell(given)
        made = cell(given, state)
        (made[0] if isinstance(made, tuple) else made).square().sum().backward()
        return [one.cpu() for one in (given.grad, *(p.grad for p in cell.parameters()))]

    with predict_syncs() as syncs:
        on_gpu = computed("cuda")
        assert sum("_thnn_fused" in call.name for call in syncs.operators) >= 2
    torch.testing.assert_close(on_gpu, computed("cpu"))


@pytest.mark.parametrize(
    ("kind", "loss", "expected"),
    [
        ("lstm", lambda made: made[0].mul(2).sum(), 6),
        ("lstm", lambda made: made[0].sum(), 7),
        ("lstm", lambda made: made[1][0].sum() + made[1][1].sum(), 7),
        ("gru", lambda made: made[0].mul(2).sum(), 5),
        ("batch first", lambda made: made[0].mul(2).sum(), 10),
    ],
)
def test_launches_are_those_of_the_stand_in_device(kind, loss, expected):
    with predict_syncs() as syncs:
        layer = LAYERS[kind]().cuda()
        loss(layer(torch.ones(3, 6, 4, device="cuda"))).backward()
        assert sum(launches(call) for call in syncs.operators if "rnn" in call.name) == expected


@pytest.mark.parametrize(
    ("kind", "dtype", "layers", "size", "length", "batch", "measured_us"),
    [
        (nn.LSTM, torch.float32, 1, 64, 8, 4, 52.1),
        (nn.LSTM, torch.float32, 2, 512, 32, 64, 2156.6),
        (nn.LSTM, torch.float16, 1, 512, 32, 64, 476.1),
        (nn.GRU, torch.float32, 1, 512, 32, 64, 930.6),
        (nn.RNN, torch.float32, 1, 512, 32, 64, 584.0),
    ],
)
def test_the_band_holds_what_an_h100_took(kind, dtype, layers, size, length, batch, measured_us):
    """The measurements from which the class is judged, with PyTorch 2.11."""
    with predict_syncs() as syncs:
        layer = kind(size, size, layers).to("cuda", dtype)
        given = torch.randn(length, batch, size, device="cuda", dtype=dtype, requires_grad=True)
        syncs.reset()
        layer(given)[0].sum().backward()
        band = syncs.estimate("H100").gpu_ms
    assert band[0] < measured_us / 1e3 < band[1]
    assert band[1] < 12 * band[0]


def test_a_packed_sequence_takes_as_many_time_steps_as_its_longest():
    kernels = []
    for packed in (False, True):
        with predict_syncs() as syncs:
            layer = nn.LSTM(64, 64).cuda()
            given = torch.randn(32, 4, 64, device="cuda")
            sequence = pack_padded_sequence(given, torch.full((4,), 32)) if packed else given
            syncs.reset()
            layer(sequence)
            (one,) = [call for call in syncs.operators if "rnn" in call.name]
            (kernel,) = kernels_of(one)
            kernels.append((kernel.kind, kernel.flop, kernel.bytes, kernel.turns))
    assert kernels[0] == kernels[1]


def test_autocast_computes_a_layer_in_its_type():
    with predict_syncs() as syncs, torch.autocast("cuda", torch.bfloat16):
        made, _ = nn.LSTM(4, 5).cuda()(torch.ones(3, 6, 4, device="cuda"))
        assert made.dtype == torch.bfloat16
        assert [call.name for call in syncs.operators if "rnn" in call.name] == ["aten._cudnn_rnn.default"]
