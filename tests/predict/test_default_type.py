"""The legacy default tensor type, by which programs of earlier years put everything on the GPU."""

import numpy as np
import pytest
import torch

from steptrace.predict import predict_syncs


@pytest.mark.filterwarnings(r"ignore:torch.set_default_tensor_type\(\) is deprecated")
@pytest.mark.parametrize("kind", ["torch.cuda.FloatTensor", "torch.cuda.DoubleTensor", torch.FloatTensor])
def test_tensors_without_a_type_are_of_the_default_one(kind: object) -> None:
    on_cuda = isinstance(kind, str)
    dtype = torch.float64 if kind == "torch.cuda.DoubleTensor" else torch.float32
    with predict_syncs() as syncs:
        torch.set_default_tensor_type(kind)
        made = [torch.Tensor([1e10]), torch.Tensor(2, 3), torch.Tensor(torch.Size([4])), torch.Tensor()]
        made += [torch.Tensor(np.ones(2)), torch.zeros(2), torch.rand(2)]
        assert [(one.is_cuda, one.dtype) for one in made] == [(on_cuda, dtype)] * len(made)
        assert [tuple(one.shape) for one in made[:4]] == [(1,), (2, 3), (4,), (0,)]
        assert made[0].tolist() == [1e10]
        assert torch.nn.Linear(2, 2).weight.is_cuda is on_cuda
        assert not torch.FloatTensor([1.0]).is_cuda
        assert isinstance(torch.nn.Parameter(made[0]), torch.nn.Parameter)
    assert (syncs.total > 0) is on_cuda
    assert torch.Tensor([1.0]).device.type == "cpu"
    assert torch.get_default_dtype() == torch.float32
    assert torch.zeros(1).device.type == "cpu"


def test_a_list_that_becomes_a_tensor_of_the_default_type_is_copied() -> None:
    with predict_syncs() as syncs:
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
        torch.Tensor([1e10])
    (site,) = syncs.sites
    assert (site.kind, site.count, site.code) == ("h2d_copy", 1, "torch.Tensor([1e10])")
