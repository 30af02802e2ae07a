"""Branches on a step counter are seen before they are taken."""

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from steptrace.engine.step_counters import LEAST_STEPS, StepBranch, StepCounters, whole_periods


def branches(tmp_path: Path, body: str, before: str = "") -> list[StepBranch]:
    """What is found in a training of a few steps; `body` is a step's, which calls `end()` last."""
    file = tmp_path / "training.py"
    loop = f"for step in range(100):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
    file.write_text(f"{textwrap.dedent(before)}\n{loop}")
    counters, ended = StepCounters(), []

    def end() -> None:
        ended.append(None)
        if len(ended) == 1:
            counters.watch()
        else:
            counters.step_ends()
        if counters.watched_enough:
            counters.stop()
            raise StopIteration

    with pytest.raises(StopIteration):
        exec(compile(file.read_text(), str(file), "exec"), {"end": end})
    assert sys.gettrace() is None
    assert len(ended) == 1 + LEAST_STEPS
    return counters.branches()


ARGS = "import types; args = types.SimpleNamespace(every=10, nested={'log': 25})"


@pytest.mark.parametrize(
    ("before", "body", "periods"),
    [
        ("", "if step % 10 == 0: pass\nend()", [10]),
        ("", "if not (step + 1) % 50: pass\nend()", [50]),
        ("", "log = step % 7 == 6\nend()", [7]),
        ("", "x = 1 if step and step % 500 == 0 else 0\nend()", [500]),
        (ARGS, "if step % args.every == 0: pass\nif step % args.nested['log'] == 0: pass\nend()", [10, 25]),
        (ARGS, "if step % (2 * args.every) == 0 or step % 3 == 0: pass\nend()", [60]),  # of one line together
        ("def log(n):\n    if n % 20 == 0: pass", "log(step)\nend()", [20]),
        ("batches = 'abcd'", "if step % len(batches) == 0: pass\nend()", [4]),
        # Four batches make a step, so that every tenth batch comes in the same place of a step after five steps.
        ("", "for n in range(4):\n    if (4 * step + n) % 10 == 0: pass\nend()", [5]),
        ("", "for n in range(4):\n    if (4 * step + n) % 4 == 3: pass\nend()", []),  # of every step
        ("", "for n in range(4):\n    if n % 2 == 0: pass\nend()", []),  # every second layer
        ("", "assert 64 % 8 == 0\nend()", []),
        ("", "x = [1, 2, 3][step % 3]\nend()", []),  # an index, and no condition
        ("", "x = f'{step % 3}' if '%d' % step == '3' else ''\nend()", []),
        ("def rest(n): return n", "if rest(step) % 10 == 0: pass\nend()", []),  # no call of the program's is repeated
    ],
)
def test_periods_of_conditions(tmp_path: Path, before: str, body: str, periods: list[int]) -> None:
    assert [branch.every for branch in branches(tmp_path, body, before)] == periods


def test_a_branch_is_named_by_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (branch,) = branches(tmp_path, "x = 1\nif step % 10 == 0: pass\nend()")
    assert (Path(branch.file).name, branch.line) == ("training.py", 4)


def test_properties_are_read_aside_and_their_errors_are_theirs(tmp_path: Path) -> None:
    """A program's property may do anything; what it does for a look at a counter is not the program's."""
    before = """
        class State:
            @property
            def steps(self):
                raise KeyError("not yet")
        state = State()
    """
    body = "try:\n    if state.steps % 2: pass\nexcept KeyError: pass\nif step % 5 == 0: pass\nend()"
    assert [branch.every for branch in branches(tmp_path, body, before)] == [5]


def test_somebody_else_s_tracing_goes_on() -> None:
    events: list[str] = []

    def tracer(frame: object, event: str, argument: object) -> Callable[..., object] | None:  # noqa: ARG001
        events.append(event)
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        counters = StepCounters()
        counters.watch()
        counters.stop()
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert counters.branches() == []


@pytest.mark.parametrize(
    ("periods", "least", "most", "steps"),
    [
        ([], 24, 120, 24),
        ([10], 4, 24, 10),
        ([10], 24, 120, 30),
        ([50], 24, 120, 50),
        ([50], 4, 24, 4),  # too long to be followed
        ([10, 50, 500], 24, 120, 50),
        ([24, 50], 24, 120, 50),  # together after 600
        ([7, 1], 24, 120, 28),
    ],
)
def test_whole_periods_are_followed(periods: list[int], least: int, most: int, steps: int) -> None:
    assert whole_periods([StepBranch("f", 1, every) for every in periods], least=least, most=most) == steps
