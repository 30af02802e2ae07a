"""Tensors on the GPU that a program sends to another process."""

import io
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch import nn

from steptrace.predict import predict_syncs


def received(value):
    return ForkingPickler.loads(ForkingPickler.dumps(value))


def test_both_processes_see_the_same_memory_and_nobody_waits():
    with predict_syncs() as syncs:
        values = torch.zeros(4, device="cuda")
        part = received(values[1:3])
        part.fill_(5)
        assert syncs.total == 0
        assert (part.device, part.is_shared()) == (torch.device("cuda", 0), True)
        assert values.tolist() == [0.0, 5, 5, 0]


def test_memory_that_the_program_has_asked_for_is_shared_too():
    with predict_syncs():
        values = torch.zeros(4, device="cuda")
        storage = values.untyped_storage()
        received(values).fill_(5)
        assert (values.tolist(), storage.device.type) == ([5.0] * 4, "cuda")
        with pytest.raises(RuntimeError, match="Cannot pickle CUDA storage"):
            ForkingPickler.dumps(storage)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_sparse_tensor_arrives_as_one(layout):
    with predict_syncs():
        sent = torch.eye(2, device="cuda").to_sparse(layout=layout)
        torch.save(sent, io.BytesIO())
        arrived = received(sent)
        assert (arrived.layout, arrived.device.type) == (layout, "cuda")
        assert arrived.to_dense().tolist() == [[1.0, 0], [0, 1]]


def test_a_module_arrives_with_its_parameters():
    with predict_syncs():
        layer = nn.Linear(2, 2).cuda().share_memory()
        arrived = received(layer)
        with torch.no_grad():
            layer.weight.fill_(3)
        assert all(isinstance(value, nn.Parameter) and value.is_cuda for value in arrived.parameters())
        assert arrived.weight.tolist() == [[3.0, 3], [3, 3]]
        arrived(torch.ones(1, 2, device="cuda")).sum().backward()
        assert arrived.weight.grad is not None


def test_a_tensor_without_values_arrives_without_values():
    with predict_syncs() as syncs:
        large = torch.rand(512, 1024, device="cuda").t()
        arrived = received(large)
        assert (arrived.shape, arrived.stride()) == ((1024, 512), (1, 1024))
        arrived.sum().item()
        assert len(syncs.assumed) == 1


def test_it_arrives_on_the_host_where_no_prediction_is_active():
    with predict_syncs():
        sent = ForkingPickler.dumps(torch.ones(2, device="cuda"))
    arrived = ForkingPickler.loads(sent)
    assert (type(arrived), arrived.tolist()) == (torch.Tensor, [1.0, 1])


def test_a_result_of_the_graph_is_refused_as_on_cuda():
    with predict_syncs():
        result = torch.ones(2, device="cuda", requires_grad=True) * 2
        with pytest.raises(RuntimeError, match="non-leaf"):
            ForkingPickler.dumps(result)


def test_python_s_own_way_is_back_after_a_prediction():
    before = dict(ForkingPickler._extra_reducers)
    with predict_syncs():
        assert ForkingPickler._extra_reducers != before
    assert ForkingPickler._extra_reducers == before
