"""Whose fault it is that a program failed while it was measured."""

import re
from collections.abc import Callable

import pytest
import torch

from steptrace import __version__
from steptrace.engine import step_recorders
from steptrace.engine.frames import hook_fault
from steptrace.engine.step_recorders import OpLineRecorder
from steptrace.engine.steps import StepFinder
from steptrace.launch.hooks import Hooks


def _failing(step: Callable[[], object]) -> str | None:
    try:
        step()
    except Exception as error:
        return hook_fault(error)
    raise AssertionError("the step has not failed")


def _hooks() -> Hooks:
    return Hooks(StepFinder(lambda _: None))


def _watched_product() -> None:
    with OpLineRecorder():
        torch.ones(2, 3) @ torch.ones(2, 3)


def _watched_wait() -> None:
    with OpLineRecorder():
        torch.cuda.Event.synchronize(None)


def _without_graph() -> None:
    _hooks()._around_backward(torch.autograd.backward)(torch.ones(()))


def _wrong_loss() -> None:
    _hooks()._around_scale(lambda scaler, outputs: outputs + scaler)(None, torch.ones(()))


@pytest.mark.parametrize("step", [_watched_product, _watched_wait, _without_graph, _wrong_loss, lambda: 1 // 0])
def test_what_fails_in_a_function_of_the_program_or_of_pytorch_is_no_fault_of_steptrace(
    step: Callable[[], object],
) -> None:
    assert _failing(step) is None


def test_what_fails_in_steptrace_itself_is_reported_with_versions_and_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_recorders, "_sites", None)
    report = _failing(_watched_product)
    assert report is not None
    assert f"please report: steptrace {__version__}, torch {torch.__version__}, TypeError: " in report
    assert re.search(r"step_recorders\.py:\d+$", report)
