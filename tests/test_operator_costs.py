"""What programs declare of their custom operators."""

import math

import pytest

import steptrace
from steptrace.errors import ConfigError
from steptrace.operator_costs import cost_formula, operator_cost


@pytest.mark.parametrize(
    "wrong",
    [
        {"flop": -1},
        {"bytes": math.nan},
        {"launches": 1.5},
        {"launches": None},
        {"flop": "many"},
        {"arithmetic": "int4"},
    ],
)
def test_a_cost_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigError):
        steptrace.OperatorCost(**wrong)


def test_an_operator_is_named_with_its_namespace():
    with pytest.raises(ConfigError):
        operator_cost("scan")


def test_a_formula_stands_for_all_operators_that_it_is_declared_for():
    @steptrace.operator_cost("steptrace_costs::a", "steptrace_costs::b")
    def formula() -> steptrace.OperatorCost:
        return steptrace.OperatorCost(flop=1)

    assert cost_formula("steptrace_costs::a") is cost_formula("steptrace_costs::b") is formula
    assert cost_formula("steptrace_costs::c") is None
