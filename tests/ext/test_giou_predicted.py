"""The extension's operators on the virtual device: they run, give the same loss, and are known not to wait."""

import pytest
import torch

from steptrace.predict import predict_syncs
from steptrace.predict.sync_rule import declared_rules
from steptrace.workloads.giou_kernels import FusedLoss, KernelLoss


@pytest.mark.usefixtures("ops")
@pytest.mark.parametrize("make", [FusedLoss, KernelLoss, lambda: KernelLoss(conditional=True)])
def test_a_prediction_knows_the_operators(make_boxes, make):
    predictions, targets = make_boxes(4, 8)
    loss = make()
    expected = loss(predictions, targets).item()
    with predict_syncs(rules=declared_rules(loss)) as syncs:
        leaf = predictions.clone().pin_memory().to("cuda", non_blocking=True).requires_grad_()
        value = loss(leaf, targets.clone().pin_memory().to("cuda", non_blocking=True))
        value.backward()
        assert (syncs.total, syncs.unknown) == (0, [])
        assert leaf.grad.is_cuda
        assert value.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.usefixtures("ops")
def test_an_operator_without_a_rule_is_unknown(make_boxes):
    predictions, targets = make_boxes(4, 8)
    with predict_syncs() as syncs:
        FusedLoss()(predictions.to("cuda", non_blocking=True), targets.to("cuda", non_blocking=True))
    assert [unknown.op for unknown in syncs.unknown] == ["steptrace_giou::giou_loss"]


def test_what_runs_operators_in_python_is_served_whatever_its_device(ops):
    with torch._subclasses.FakeTensorMode():
        assert ops.serves(torch.ones(1, device="cuda"))
    assert ops.serves(torch.ones(1))
    assert not ops.serves(torch.ones(1, device="meta"))
