"""Whose fault it is that a program failed during a prediction."""

import fractions
import io
import pickle
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from steptrace import __version__
from steptrace.predict import predict_syncs, uncomputed
from steptrace.predict.fault import fault_report, may_be_ours


def _failing(step: Callable[[], object]) -> str | None:
    with predict_syncs():
        try:
            step()
        except Exception as error:
            return fault_report(error)
    raise AssertionError("the step has not failed")


def _twice_backward() -> None:
    loss = torch.ones(2, device="cuda", requires_grad=True).exp().sum()
    loss.backward()
    loss.backward()


@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")
@pytest.mark.parametrize(
    "step",
    [
        lambda: torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda"),
        lambda: nn.Linear(2, 2).cuda()(None),
        lambda: nn.Linear(3, 2).cuda()(torch.ones(1, 2, device="cuda")),
        lambda: nn.Embedding(2, 2).cuda()(torch.ones(1, dtype=torch.long) * 7),
        lambda: torch.ones(2, device="cuda") + torch.ones(2),
        lambda: torch.ones(2, device="cuda").numpy(),
        lambda: torch.ones(2, device="cuda:7"),
        lambda: torch.cuda.synchronize(wrongly=1),
        lambda: torch.ones(2, device="cuda").view(3),
        lambda: torch.ones(2, device="cuda", requires_grad=True).add_(1),
        lambda: torch.ones(2, device="cuda").backward(),
        lambda: torch.zeros(2, device="cuda").no_such_method(),
        lambda: 1 // 0,
        # As torchvision does where it does not fit its PyTorch.
        lambda: torch.library.Library("steptrace_absent", "IMPL").impl("nms", lambda t: t, "Meta"),
        _twice_backward,
    ],
)
def test_what_fails_on_any_device_is_the_program_s_fault(step):
    assert _failing(step) is None


def test_what_fails_in_steptrace_alone_is_reported_with_versions_operator_and_frames(monkeypatch):
    monkeypatch.setattr(uncomputed, "run", None)
    report = _failing(lambda: torch.ones(2, device="cuda").cos())
    assert f"steptrace {__version__}, torch {torch.__version__}, operator " in report
    assert re.search(r"TypeError: .*, at .*arguments\.py:\d+, .*execution\.py:\d+$", report)


def test_a_program_that_somebody_stops_has_no_fault_of_steptrace(monkeypatch):
    def interrupted(*_args, **_named):
        stop = KeyboardInterrupt()
        raise stop

    monkeypatch.setattr(uncomputed, "run", interrupted)
    with predict_syncs(), pytest.raises(KeyboardInterrupt) as error:
        torch.ones(2, device="cuda")
    assert fault_report(error.value) is None


def _checks(value: object) -> None:
    assert value is None


class _Batches(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.ones(1 + place)


class _Slots:
    __slots__ = ()

    def __getattr__(self, name: str) -> object:
        raise ValueError(name)


def _judged(step: Callable[[], object]) -> bool:
    with predict_syncs():
        model = nn.Linear(2, 2).cuda()  # of the caller, which is no innermost frame
        try:
            step()
        except Exception as error:
            assert isinstance(model, nn.Module)
            return may_be_ours(error)
    raise AssertionError("the step has not failed")


@pytest.mark.parametrize(
    "step",
    [
        lambda: _checks(3),
        lambda: _checks(_Slots()),
        lambda: int("3.5"),
        lambda: {"image": 1}["label"],
        lambda: np.no_such_function(),
        lambda: np.concatenate([[1], [[2]]]),
        lambda: np.ones(2).no_such_method(),
        lambda: fractions.Fraction("x"),
        lambda: next(iter(torch.utils.data.DataLoader(_Batches(), batch_size=2))),
        lambda: nn.Linear(3, 2)(torch.ones(1, 2)),
        lambda: torch.load(io.BytesIO(pickle.dumps(fractions.Fraction(1)))),
    ],
)
def test_an_error_without_the_device_is_not_the_prediction_s(step):
    assert not _judged(step)


@pytest.mark.parametrize(
    "step",
    [
        lambda: _checks(torch.ones(2, device="cuda")),
        lambda: _checks({"model": [nn.Linear(2, 2).cuda()]}),
        lambda: fractions.Fraction(torch.ones(2, device="cuda")),
        lambda: torch.cuda.no_such_function(),
        lambda: torch.ones(2, device="cuda").no_such_method(),
        lambda: torch.ones(2, device="cuda").view(3),
    ],
)
def test_an_error_with_the_device_may_be_the_prediction_s(step):
    assert _judged(step)
