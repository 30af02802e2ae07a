"""What is noted of real compilations: which guard failed, where graphs break, which limit was reached."""

import importlib.util
import inspect
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from guard_changes import CHANGES, increased, named
from steptrace.documents.compilations import Recompiled
from steptrace.engine import compilations
from steptrace.engine.compilations import CompilationLog, guard_of

T = torch.zeros


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompilationLog]:
    """A log of its own, which is filled until the test ends."""
    fresh = CompilationLog()
    monkeypatch.setattr(compilations, "LOG", fresh)
    for path, attribute in ((compilations._METRICS, "create"), (compilations._LOG_BREAK, "log_graph_break")):
        owner = compilations.owner_of(path)
        monkeypatch.setattr(owner, attribute, owner.__dict__[attribute])  # as it is again afterwards
    with warnings.catch_warnings():  # PyTorch's modules use what it deprecates
        warnings.simplefilter("ignore")
        importlib.import_module("torch._inductor.cudagraph_trees")
    torch._dynamo.reset()
    compilations.watch()
    yield fresh
    torch._dynamo.reset()


def compiled(function: Any, **settings: Any) -> Any:
    return torch.compile(function, backend="eager", **settings)


def failed(log: CompilationLog) -> list[Recompiled]:
    record = log.record()
    assert record is not None
    return list(record.recompilations)


class Counting(nn.Module):
    """Counts its calls in an attribute that the compiler takes for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


def in_pairs(x: Tensor) -> Tensor:
    return x.view(-1, 2) if x.shape[0] % 2 == 0 else x


@pytest.mark.parametrize("name", CHANGES)
def test_the_guard_that_failed_says_what_has_changed(log: CompilationLog, name: str) -> None:
    function, calls, kind, value, dimension = CHANGES[name]
    run = compiled(function)
    for arguments in calls:
        run(*arguments)
    (guard,) = failed(log)
    assert (guard.kind, guard.value, guard.dimension, guard.recompilations) == (kind, value, dimension, 1)
    assert guard.line == inspect.getsourcelines(function)[1] or guard.line == guard.compiled_line + 1
    assert guard.file.endswith("guard_changes.py")


def test_a_size_of_dynamic_code_is_a_size_as_well(log: CompilationLog) -> None:
    run = compiled(in_pairs, dynamic=True)
    run(T(4))
    run(T(9))
    (guard,) = failed(log)
    assert (guard.kind, guard.dimension) == ("size", 0)


def test_gradients_and_autocast_are_global_state(log: CompilationLog) -> None:
    run = compiled(increased)
    run(T(3))
    with torch.no_grad():
        run(T(3))
    (guard,) = failed(log)
    assert (guard.kind, guard.value) == ("global_state", "grad_mode")


def test_train_and_eval_are_a_module_s_mode(log: CompilationLog) -> None:
    module = nn.Dropout(0.5)
    run = compiled(module)
    run(T(3))
    module.eval()
    run(T(3))
    (guard,) = failed(log)
    assert guard.kind == "training"


def test_a_scheduled_learning_rate_is_told_from_other_values(log: CompilationLog) -> None:
    weight = nn.Parameter(T(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    step = compiled(optimizer.step)
    for rate in (0.1, 0.2):
        weight.grad = T(3)
        optimizer.param_groups[0]["lr"] = rate
        step()
    assert "learning_rate" in {guard.kind for guard in failed(log)}


def test_a_counter_of_a_module_reaches_the_limit(log: CompilationLog) -> None:
    run = compiled(Counting())
    with torch._dynamo.config.patch(recompile_limit=3):
        for _ in range(6):
            run(T(3))
    record = log.record()
    assert record is not None
    (function,) = record.functions
    assert (function.function, function.compilations, function.limit_reached) == ("forward", 3, True)
    (guard,) = record.recompilations
    # The third failure reaches the limit: nothing is compiled any more, so that one is no recompilation.
    assert (guard.kind, guard.value, guard.recompilations) == ("module_value", "self.calls", 2)
    assert guard.code == "self.calls += 1"
    assert (guard.compiled_line, guard.line) == (function.line, function.line + 1)


def broken(x: Tensor) -> Tensor:
    y = x * 2
    if y.sum().item() > 1:
        y = y + 1
    torch._dynamo.graph_break()
    return y * 3


def test_graph_breaks_have_their_lines_and_reasons(log: CompilationLog) -> None:
    first = inspect.getsourcelines(broken)[1]
    compiled(broken)(T(3))
    record = log.record()
    assert record is not None
    assert [(one.line - first, one.function, one.compilations) for one in record.breaks] == [
        (2, "broken", 1),
        (4, "broken", 1),
    ]
    item, asked = record.breaks
    assert item.code == "if y.sum().item() > 1:"
    assert item.hints
    assert asked.kind == "Call to `torch._dynamo.graph_break()`"
    # What follows a break is compiled by itself, and belongs to the same function.
    assert {one.function for one in record.functions} == {"broken"}
    assert record.compile_ns >= sum(one.compile_ns for one in record.functions) > 0


def test_a_break_that_an_optimizer_of_pytorch_asks_for_is_pytorch_s_own(log: CompilationLog) -> None:
    weight = torch.nn.Parameter(T(3))
    weight.grad = T(3)
    optimizer = torch.optim.SGD([weight], 0.1)
    compiled(optimizer.step)()

    def update() -> None:
        optimizer.step()
        torch._dynamo.graph_break()

    compiled(update)()
    record = log.record()
    assert record is not None
    first = inspect.getsourcelines(update)[1]
    here = [(one.line - first, one.by_pytorch) for one in record.breaks if one.function == "update"]
    assert here == [(1, True), (2, False)]
    assert {one.by_pytorch for one in record.breaks if one.function != "update"} == {True}


def test_a_guard_that_fails_at_the_limit_alone_is_named_without_a_recompilation(log: CompilationLog) -> None:
    run = compiled(Counting())
    with torch._dynamo.config.patch(recompile_limit=1):
        for _ in range(3):
            run(T(3))
    assert [(guard.value, guard.recompilations) for guard in failed(log)] == [("self.calls", 0)]


def test_a_break_at_a_call_of_a_function_of_pytorch_has_the_line_of_that_call(log: CompilationLog) -> None:
    weight = nn.Parameter(T(3))
    weight.grad = T(3)
    optimizer = torch.optim.SGD([weight], 0.1)
    torch.optim.lr_scheduler.ConstantLR(optimizer)  # which wraps `step`, so that Dynamo skips it
    step = compiled(optimizer.step)
    first = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    step()
    record = log.record()
    assert record is not None
    of_program = [one for one in record.breaks if not one.by_pytorch]
    assert [(one.line, one.code) for one in of_program] == [(first, "step()")]
    assert of_program[0].file.endswith("test_compilations.py")


def test_what_was_read_where_a_graph_broke_is_named_as_such(log: CompilationLog) -> None:
    run = compiled(broken)
    run(T(3))
    run(T(3) + 1)
    assert "read_value" in {guard.kind for guard in failed(log)}


def test_backward_passes_add_to_the_time_of_their_function(log: CompilationLog) -> None:
    x = T(3, requires_grad=True)
    loss = torch.compile(increased, backend="aot_eager")(x).sum()
    before = log.record()
    loss.backward()
    after = log.record()
    assert before is not None
    assert after is not None
    assert after.functions[0].compile_ns > before.functions[0].compile_ns
    assert after.functions[0].compilations == before.functions[0].compilations == 1


def test_an_error_of_ours_never_reaches_the_program(log: CompilationLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(log, "broken", fails)
    monkeypatch.setattr(log, "_recompiled", fails)
    run = compiled(broken)
    assert run(T(3)).tolist() == [0, 0, 0]
    assert run(T(3, 3)).shape == (3, 3)


def test_nothing_compiled_leaves_no_record(log: CompilationLog) -> None:
    increased(T(3))
    assert log.record() is None


def test_dynamo_is_watched_once_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that asks whether there is such a module does not import it by that."""
    wrapped: list[bool] = []
    monkeypatch.setattr(compilations, "_wrap", lambda _and_then: wrapped.append(True))
    monkeypatch.setattr(compilations, "_DYNAMO", "this")
    monkeypatch.delitem(sys.modules, "this", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr("builtins.print", lambda *_: None)
    compilations.watch()
    assert not wrapped
    importlib.util.find_spec("this")
    assert not wrapped
    importlib.import_module("this")
    assert wrapped == [True]
    assert not any(isinstance(one, compilations._AfterDynamo) for one in sys.meta_path)


def test_a_guard_of_no_known_form_is_kept_as_it_is() -> None:
    assert guard_of("12/3: something new  # x = 1  # a.py:3 in f") == ("something new", "other", "something new", None)


def test_a_guard_on_a_long_text_is_kept_in_part(log: CompilationLog) -> None:
    function = compiled(named)
    for end in ("first", "last"):
        function(T(3), "prompt " * 10_000 + end)
    (found,) = failed(log)
    assert (found.kind, found.value) == ("value", "name")
    assert len(found.guard) <= 1_000
    assert "first" in found.guard


def test_hints_are_sentences_apart() -> None:
    error = "Reason\n  Hint: Remove the call\n  Hint: It may be fine.\n  Hint: Remove the call\n"
    assert compilations.hints_of(error) == ("Remove the call.", "It may be fine.")
