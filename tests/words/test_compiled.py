"""Words on compiled code."""

from dataclasses import replace

from steptrace.documents.compiled import CompiledCode, CompiledStep, GraphBreak, GraphKernels
from steptrace.documents.estimate import OperatorCalls
from steptrace.words.compiled import compiled_lines

_KERNEL = OperatorCalls(
    name="inductor.pointwise",
    inputs=(),
    outputs=(),
    is_view=False,
    flop=0,
    calls=1,
    phase="forward",
    file="train.py",
    line=7,
)
_CODE = CompiledCode(
    file="train.py",
    line=7,
    graphs=2,
    reason=None,
    seconds=1.0,
    kernels=GraphKernels(forward=(_KERNEL,), backward=()),
    breaks=(GraphBreak(kind="a reason", file="train.py", line=9, code="print(x)"),),
)


def test_code_that_is_alike_for_several_kinds_of_arguments_stands_once() -> None:
    step = CompiledStep(codes=(_CODE, _CODE, _CODE), queue=())
    _, code, found = compiled_lines(step)
    assert code.startswith(compiled_lines(replace(step, codes=(_CODE,)))[1])
    assert "3" in code.removeprefix(compiled_lines(replace(step, codes=(_CODE,)))[1])
    assert "train.py:9" in found


def test_code_that_differs_stands_apart() -> None:
    step = CompiledStep(codes=(_CODE, replace(_CODE, graphs=1)), queue=())
    assert len(compiled_lines(step)) == 1 + 2 * len(compiled_lines(replace(step, codes=(_CODE,)))[1:])
