"""What is computed of a trace once."""

import pickle
from dataclasses import replace

from builders import TraceBuilder
from steptrace.trace.model import Trace, once

_CALLS: list[int] = []


def _trace(kernels: int) -> Trace:
    builder = TraceBuilder()
    for number in range(kernels):
        builder.kernel(10 * number, 10 * number + 5, 3)
    return builder.trace()


@once
def _double(trace: Trace, number: int) -> int:
    _CALLS.append(number)
    return 2 * number + len(trace.kernels)


def test_the_same_question_is_computed_once() -> None:
    trace = _trace(1)
    _CALLS.clear()
    assert [_double(trace, 1), _double(trace, 1), _double(trace, 2)] == [3, 3, 5]
    assert _CALLS == [1, 2]


def test_another_trace_and_a_changed_copy_have_answers_of_their_own() -> None:
    one, two = _trace(1), _trace(2)
    assert _double(one, 1) == 3
    assert _double(replace(one, kernels=two.kernels), 1) == _double(two, 1) == 4


def test_a_trace_goes_to_another_process_with_what_was_computed_of_it() -> None:
    trace = _trace(1)
    _CALLS.clear()
    assert _double(trace, 1) == _double(pickle.loads(pickle.dumps(trace)), 1)
    assert _CALLS == [1]
