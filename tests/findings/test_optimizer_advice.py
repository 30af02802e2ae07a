"""The advice on an optimizer names only what its class takes, as PyTorch itself says."""

import inspect

import pytest
import torch

from steptrace.findings.trace.compute import FOREACH, FUSED, OPTIMIZER_RULES, case_of

(RULE,) = (rule for rule in OPTIMIZER_RULES if rule.name == "single_tensor_optimizer")


def advice_on(optimizer: str) -> str:
    case = case_of(optimizer)
    return RULE.advice if case is None else RULE.cases[case]["advice"]


@pytest.mark.parametrize("optimizer", [*FUSED, *FOREACH])
def test_it_names_what_the_class_takes(optimizer: str) -> None:
    taken = inspect.signature(getattr(torch.optim, optimizer)).parameters
    advice = advice_on(optimizer)
    assert ("fused=True" in advice) is ("fused" in taken)
    assert "foreach=True" in advice
    assert "foreach" in taken


def test_of_a_class_of_somebody_elses_nothing_is_known() -> None:
    assert "Pass `fused=True`" not in advice_on("Mine")
    assert "torch._foreach_*" in advice_on("Mine")
