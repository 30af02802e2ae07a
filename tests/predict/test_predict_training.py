"""Syncs of what a training brings along: batches of a loader, its optimizer's form, an encoder that is evaluated."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from steptrace.predict import predict_syncs


@pytest.mark.parametrize(
    ("num_workers", "pin_memory", "non_blocking", "expected"),
    [(0, True, True, 0), (1, True, True, 0), (0, True, False, 2), (0, False, False, 2), (1, False, True, 0)],
)
def test_loader_batches(num_workers, pin_memory, non_blocking, expected):
    data = TensorDataset(torch.rand(2, 3), torch.arange(2))
    with predict_syncs() as syncs:
        (batch,) = DataLoader(data, batch_size=2, pin_memory=pin_memory, num_workers=num_workers)
        assert [part.is_pinned() for part in batch] == [pin_memory, pin_memory]
        for part in batch:
            part.to("cuda", non_blocking=non_blocking)
    assert syncs.total == expected
    assert {(site.kind, site.pinned) for site in syncs.sites} <= {("h2d_copy", pin_memory)}


def test_the_default_form_of_an_optimizer_is_foreach_as_on_cuda():
    with predict_syncs() as syncs:
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20))).cuda()
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        syncs.reset()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert syncs.operator_total == 1  # _foreach_add_ over 40 parameters


@pytest.mark.parametrize(("grad_mode", "unknown"), [(torch.no_grad, 1), (torch.enable_grad, 0)])
def test_an_encoder_that_is_evaluated_reads_its_padding_mask(grad_mode, unknown):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    with predict_syncs() as syncs:
        encoder = torch.nn.TransformerEncoder(layer, 1).cuda().eval()
        batch = torch.rand(2, 3, 8, device="cuda")
        padding = torch.zeros(2, 3, dtype=torch.bool, device="cuda")
        syncs.reset()
        with grad_mode():
            encoder(batch, src_key_padding_mask=padding)
    assert [(site.kind, site.op) for site in syncs.sites] == [
        ("d2h_copy", "aten::_nested_tensor_from_mask_left_aligned")
    ]
    assert len(syncs.unknown) == unknown
