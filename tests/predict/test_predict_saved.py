"""Files that a program writes and reads again: what lay on the GPU comes back there, unless it asks otherwise."""

import io
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from steptrace.predict import predict_syncs


def again(value: Any, **named: Any) -> Any:
    """A value that was saved and loaded."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **named)


@pytest.mark.parametrize(
    ("location", "device"),
    [(None, "cuda"), ("cuda", "cuda"), (torch.device("cuda:0"), "cuda"), ("cpu", "cpu"), ({"cuda:0": "cpu"}, "cpu")],
)
def test_a_file_s_tensors_lie_where_they_are_asked_for(location, device):
    with predict_syncs():
        model = nn.Linear(4, 2).to("cuda")
        state = again({"model": model.state_dict(), "losses": [model.bias], "step": 3}, map_location=location)
        whole = again(model, map_location=location, weights_only=False)
        loaded = [state["model"]["weight"], state["losses"][0], whole.weight]
        assert [tensor.device.type for tensor in loaded] == [device] * 3
        assert state["step"] == 3
        assert isinstance(whole.weight, nn.Parameter)
        assert whole.weight.requires_grad
        assert torch.equal(loaded[0].cpu(), model.weight.detach().cpu())
        of_the_cpu = again(torch.ones(3), map_location=location)
        assert of_the_cpu.device.type == ("cpu" if location is None else device)


def test_memory_without_values_is_saved_once_for_all_tensors_in_it():
    with predict_syncs() as syncs:
        table = torch.randn(300, 300, device="cuda") * 2  # too large to be computed
        tied = {
            "embedding": table,
            "head": nn.Parameter(table),
            "turned": table.t(),
            "row": table[7],
            "other": table + 1,
        }
        loaded = again(tied)
    assert syncs.total == 2 * 2  # two memories, there and back
    assert loaded["embedding"].untyped_storage().data_ptr() == loaded["row"].untyped_storage().data_ptr()
    assert {name: value.shape for name, value in loaded.items()} == {name: value.shape for name, value in tied.items()}


def test_a_file_that_holds_itself_comes_back():
    with predict_syncs():
        state: dict[str, Any] = {"weight": torch.ones(2, device="cuda"), "all": []}
        state["all"].append(state)
        loaded = again(state)
        assert loaded["all"] == [loaded]
        assert loaded["weight"].device.type == "cuda"


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:Validating sparse:UserWarning")
@pytest.mark.parametrize("location", [None, "cuda", "cpu"])
@pytest.mark.parametrize(
    ("layout", "blocks"),
    [
        *((layout, None) for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)),
        *((layout, (2, 2)) for layout in (torch.sparse_bsr, torch.sparse_bsc)),
    ],
)
def test_a_sparse_tensor_lies_where_it_is_asked_for(layout, blocks, location):
    values = torch.eye(4).to_sparse(layout=layout, blocksize=blocks)
    with predict_syncs():
        loaded = again({"weight": values.to("cuda")}, map_location=location)["weight"]
        assert (loaded.device.type, loaded.layout) == (location or "cuda", layout)
        assert torch.equal(loaded.cpu().to_dense(), torch.eye(4))


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def test_what_lay_on_the_gpu_comes_back_there_wherever_it_was_kept():
    """In a named tuple, in an optimizer that is saved whole, empty beside the CPU's empty tensor, under two keys."""
    with predict_syncs():
        weight = torch.ones(2, device="cuda")
        optimizer = torch.optim.Adam([nn.Parameter(weight)])
        optimizer.param_groups[0]["params"][0].sum().backward()
        optimizer.step()
        pair, whole = again((Pair(weight, torch.ones(1)), optimizer), weights_only=False)
        assert type(pair) is Pair
        assert [tensor.device.type for tensor in pair] == ["cuda", "cpu"]
        (parameter,) = whole.param_groups[0]["params"]
        assert (type(parameter), parameter.is_cuda) == (type(optimizer.param_groups[0]["params"][0]), True)
        assert whole.state[parameter]["exp_avg"].is_cuda
        empty = again({"cpu": torch.empty(0), "cuda": torch.empty(0, device="cuda")})
        assert [tensor.device.type for tensor in empty.values()] == ["cpu", "cuda"]
        assert again(weight.untyped_storage())._untyped_storage.is_cuda
        assert pickle.loads(pickle.dumps(weight)).is_cuda
        shared = torch.ones(2, device="cuda")
        twice = again({"a": shared, "b": shared, "part": shared[:1]})
        assert twice["a"] is twice["b"]
        twice["part"].zero_()
        assert twice["a"].tolist() == [0, 1]


def test_a_location_can_be_a_function_that_moves_storages():
    with predict_syncs() as syncs:
        loaded = again([torch.ones(2), torch.ones(3)], map_location=lambda storage, _: storage.cuda(0))
        assert [tensor.device for tensor in loaded] == [torch.device("cuda", 0)] * 2
        assert [(site.kind, site.count) for site in syncs.sites] == [("h2d_copy", 2)]
        kept = again(torch.ones(2, device="cuda"), map_location=lambda storage, _: storage)
        assert kept.device.type == "cpu"


@pytest.mark.parametrize(("location", "syncs_after"), [("cpu", 0), ("cuda", 4)])
def test_a_training_goes_on_from_its_checkpoint(location, syncs_after):
    """Where Adam's counts of steps come back on the GPU, it reads each of them twice a step, as it does on CUDA."""
    with predict_syncs() as syncs:
        model = nn.Linear(4, 2).to("cuda")
        optimizer = torch.optim.Adam(model.parameters())
        inputs = torch.randn(3, 4, device="cuda")
        model(inputs).sum().backward()
        optimizer.step()
        kept = again({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, map_location=location)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        syncs.reset()
        model(inputs).sum().backward()
        optimizer.step()
    assert (syncs.total, syncs.unknown) == (syncs_after, [])


def test_a_file_of_a_prediction_is_one_of_a_gpu_afterwards():
    """Outside of it there is no GPU, and `torch.load` is PyTorch's own again."""
    load = torch.load
    file = io.BytesIO()
    with predict_syncs():
        torch.save(torch.ones(2, device="cuda"), file)
    assert torch.load is load
    file.seek(0)
    assert torch.load(file, map_location="cpu").tolist() == [1, 1]


def test_data_parallel_over_one_gpu():
    with predict_syncs() as syncs:
        model = nn.DataParallel(nn.Linear(4, 2)).to("cuda")
        syncs.reset()
        model(torch.randn(3, 4)).sum().backward()
        assert all(parameter.grad is not None and parameter.grad.is_cuda for parameter in model.parameters())
    assert syncs.total == 0


def test_tensors_are_exchanged_by_dlpack():
    with predict_syncs() as syncs:
        values = torch.arange(6.0, device="cuda")
        shared = torch.from_dlpack(values)
        assert (shared.device, shared.shape, syncs.total) == (values.device, values.shape, 0)
        assert (shared.sum().item(), shared.data_ptr()) == (15.0, values.data_ptr())
        of_capsule = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(values))
        assert (of_capsule + 1).tolist() == [1, 2, 3, 4, 5, 6]
        with pytest.raises(BufferError, match="require gradient"):
            torch.from_dlpack(values.clone().requires_grad_())
        assert torch.from_dlpack(np.ones(2)).tolist() == [1, 1]
        with pytest.raises(RuntimeError, match="Unsupported device in DLTensor"):  # as of CUDA
            np.from_dlpack(values)


def test_nested_tensors_of_the_jagged_layout_are_followed():
    with predict_syncs():
        layer = nn.Linear(4, 5).cuda()
        parts = [torch.ones(2, 4), torch.ones(3, 4)]
        nested = torch.nested.nested_tensor(parts, layout=torch.jagged, device="cuda")
        out = layer(nested)
        assert (nested.device.type, out.shape[0], out.shape[2]) == ("cuda", 2, 5)
        out.values().sum().backward()
        assert layer.weight.grad.shape == (5, 4)


def _attention_of_nested_tensors() -> torch.Tensor:
    nested = torch.nested.nested_tensor([torch.ones(3, 2, 8)] * 2, layout=torch.jagged, device="cuda").transpose(1, 2)
    return nn.functional.scaled_dot_product_attention(nested, nested, nested)


@pytest.mark.parametrize(
    "limit",
    [
        _attention_of_nested_tensors,
        lambda: torch.export.export(nn.Linear(3, 4).cuda(), (torch.ones(2, 3, device="cuda"),)),
    ],
)
def test_what_cannot_be_followed_says_that_it_is_a_limit_of_the_prediction(limit):
    with predict_syncs(), pytest.raises(NotImplementedError, match="steptrace predict cannot follow"):
        limit()
