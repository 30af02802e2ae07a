"""FLOP from shapes are those of torch.utils.flop_counter."""

from collections.abc import Callable

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from steptrace.estimate.traced_operator import flop


def _counted(program: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        program()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "program", "inputs"),
    [
        ("mm", lambda: torch.ones(3, 5) @ torch.ones(5, 7), [(3, 5), (5, 7)]),
        ("bmm", lambda: torch.ones(2, 3, 5).bmm(torch.ones(2, 5, 7)), [(2, 3, 5), (2, 5, 7)]),
        (
            "addmm",
            lambda: torch.addmm(torch.ones(7), torch.ones(3, 5), torch.ones(5, 7)),
            [(7,), (3, 5), (5, 7)],
        ),
    ],
)
def test_formulas_are_those_of_torch(name, program, inputs):
    assert flop(name, inputs) == _counted(program) > 0


@pytest.mark.parametrize("kind", ["flash", "efficient"])
def test_attention_is_as_torch_counts_it(kind):
    query = (2, 3, 16, 8)
    key = (2, 3, 20, 8)
    value = (2, 3, 20, 12)
    name = f"_scaled_dot_product_{kind}_attention"
    forward, backward = (flop_registry[getattr(torch.ops.aten, one)] for one in (name, f"{name}_backward"))
    output = torch.empty(2, 3, 16, 12)
    tensors = [torch.empty(shape) for shape in (query, key, value)]
    assert flop(name, [query, key, value]) == forward(*tensors, out_val=output) > 0
    assert flop(f"{name}_backward", [output.shape, query, key, value]) == backward(output, *tensors, out_val=output)


def test_without_a_formula_or_with_other_shapes_there_is_none():
    assert flop("add", [(3, 4), (3, 4)]) == 0
    assert flop("mm", [(3, 4)]) == 0
