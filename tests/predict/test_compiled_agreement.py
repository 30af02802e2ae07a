"""Graphs, graph breaks and recompilations that are predicted are PyTorch's own, for programs of bench/compile_programs.

The bench compares all of them. Here are those that stand for a kind that was wrong once.
"""

import importlib

import pytest
import torch

from benches import BENCH
from steptrace.predict import captured, graph_compiler
from steptrace.torch_names import release_of

with pytest.MonkeyPatch.context() as patch:  # not for longer: `estimate` is a folder of tests, too
    patch.syspath_prepend(BENCH)
    compile_agreement = importlib.import_module("compile_agreement")
    PROGRAMS = importlib.import_module("compile_programs").load()

pytestmark = pytest.mark.skipif(
    release_of(torch.__version__) < captured._OLDEST, reason="following compiled code takes PyTorch 2.13"
)


@pytest.mark.parametrize(
    "name",
    [
        # Values of tensors that are compared, and copied, between two graphs; an error unless a condition fails.
        "breaks.equal",
        "breaks.raised_if_wrong",
        "breaks.deepcopied",
        "breaks.module_made",
        # Functions of a prediction that run between two graphs break no graph of the program.
        "breaks.backward_inside",
        "training.whole_step_compiled",
        # What a guard looks at: sizes that it does not, strides made of sizes, inference mode, arguments of a wrapper.
        "recompilations.marked_unbacked",
        "recompilations.strides",
        "recompilations.gradients_off",
        "recompilations.forward_with_a_decorator",
        "training.averaged_weights",
        # A function without operators is compiled no more.
        "recompilations.optional_tensor",
        "python.attribute_counted",
        # Operators without a form for fake tensors, and tensors that nothing leads to.
        "modules.gated_cells_in_a_loop",
        "modules.traced_module_inside",
        "breaks.least_squares",
        "operators.sparse_given",
        "operators.own_operator_without_shapes",
        # What gets its tensors at the first call.
        "modules.lazy_layer",
        # What the program forbids.
        "settings.error_on_a_recompilation_reaches_the_program",
        "settings.error_at_the_limit",
        "settings.error_at_the_limit_for_one_graph",
    ],
)
def test_what_is_predicted_is_what_pytorch_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_compiler, "launches_of", lambda *_, **__: [])
    monkeypatch.setattr(compile_agreement, "_LONGEST", 1500)  # a busy machine is slow
    real, predicted = (
        compile_agreement.in_process(function, PROGRAMS[name])
        for function in (compile_agreement.by_pytorch, compile_agreement.predicted)
    )
    assert {part: predicted[part] for part in compile_agreement.COMPARED} == real
