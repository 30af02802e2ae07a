"""Training steps in many forms run on the stand-in device, with PyTorch's own code down to the CUDA libraries."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def backend_settings() -> Iterator[None]:
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=True):
        yield


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    ).cuda()  # fmt: skip


OPTIMIZERS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_convolutional_network_trains(optimizer: str, dtype: torch.dtype, layout: torch.memory_format) -> None:
    model = _network().to(memory_format=layout)
    update = torch.optim.AdamW(model.parameters(), **OPTIMIZERS[optimizer])
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    for _ in range(3):
        inputs = torch.randn(4, 3, 16, 16).pin_memory().to("cuda", non_blocking=True, memory_format=layout)
        labels = torch.randint(0, 10, (4,)).pin_memory().to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        update.zero_grad()
    assert loss.item() == 0  # nothing is computed


@pytest.mark.parametrize("enabled", [True, False])
def test_convolutions_run_with_cudnn_and_without(*, enabled: bool) -> None:
    with torch.backends.cudnn.flags(enabled=enabled, benchmark=True):
        _network()(torch.randn(4, 3, 16, 16, device="cuda")).sum().backward()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_networks_train_with_their_weights_in_one_buffer(kind: type[nn.LSTM], *, bias: bool) -> None:
    model = kind(8, 16, num_layers=2, bidirectional=True, bias=bias).cuda()
    output, _ = model(torch.randn(5, 2, 8, device="cuda"))
    output.sum().backward()
    assert output.shape == (5, 2, 32)
    assert all(weight.grad is not None for weight in model.parameters())
    assert len({weight.untyped_storage().data_ptr() for weight in model.parameters()}) == 1


def test_a_transformer_layer_trains() -> None:
    model = nn.TransformerEncoderLayer(32, 4, batch_first=True).cuda()
    model(torch.randn(2, 5, 32, device="cuda")).sum().backward()


def test_data_arrives_on_a_stream_of_its_own_and_returns() -> None:
    host = torch.arange(1 << 16, dtype=torch.float32).pin_memory()
    side = torch.cuda.Stream(priority=-1)
    arrived = torch.cuda.Event()
    with torch.cuda.stream(side):
        data = host.to("cuda", non_blocking=True)
        arrived.record()
    torch.cuda.current_stream().wait_event(arrived)
    data.record_stream(torch.cuda.current_stream())
    back = data.to("cpu", non_blocking=True)
    torch.cuda.synchronize()
    assert back.tolist() == host.tolist()


def test_events_measure_the_time_that_is_set() -> None:
    """The default: 10 us a kernel and 1 us between two of them."""
    numbers, start, end = torch.zeros(8, device="cuda"), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(300):
        numbers.add_(1)
    end.record()
    assert not end.query()
    end.synchronize()
    assert start.elapsed_time(end) >= 300 * 0.011 - 0.001


def test_a_training_step_is_captured_as_a_graph() -> None:
    model = _network()
    inputs = torch.randn(4, 3, 16, 16, device="cuda")
    update = torch.optim.AdamW(model.parameters(), capturable=True)

    def step() -> None:
        update.zero_grad(set_to_none=True)
        model(inputs).sum().backward()
        update.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()


def test_a_sync_within_a_capture_breaks_it() -> None:
    numbers = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="captur"), torch.cuda.graph(graph):
        numbers.sum().item()


def test_memory_runs_out_at_the_set_size() -> None:
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_memory_snapshot_has_each_allocation() -> None:
    torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")
    try:
        kept = torch.empty(50 << 20, dtype=torch.uint8, device="cuda")
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    actions = [entry["action"] for entry in snapshot["device_traces"][0] if entry["size"] == kept.numel()]
    assert actions.count("alloc") == 1


def test_workers_of_a_loader_pin_their_batches() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(64, 3))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
    assert [batch[0].is_pinned() for batch in loader] == [True] * 8
