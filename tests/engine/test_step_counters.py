"""Branches on a step counter are seen before they are taken."""

import sys
import textwrap
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from steptrace.engine.step_counters import LEAST_STEPS, StepBranch, StepCounters, whole_periods


def branches(tmp_path: Path, body: str, before: str = "") -> list[StepBranch]:
    """The periods that are found in a training of a few steps; `body` is a step's, which calls `end()` last."""
    return watched(tmp_path, body, before).branches()


def watched(tmp_path: Path, body: str, before: str = "", more: int = 0, steps: int = LEAST_STEPS) -> StepCounters:
    """What watched a training of a few steps, and `more` steps that ended afterwards."""
    file = tmp_path / "training.py"
    loop = f"for step in range(100):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
    file.write_text(f"{textwrap.dedent(before)}\n{loop}")
    counters = StepCounters()
    ended = []

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
    assert len(ended) == 1 + steps
    for _ in range(more):
        counters.step_ends()
    return counters


ARGS = "import types; args = types.SimpleNamespace(every=10, nested={'log': 25})"


@pytest.mark.parametrize(
    ("before", "body", "periods"),
    [
        ("", "if step % 10 == 0: pass\nend()", [10]),
        ("", "if not (step + 1) % 50: pass\nend()", [50]),
        ("", "log = step % 7 == 6\nend()", [7]),
        ("", "x = 1 if step and step % 500 == 0 else 0\nend()", [500]),
        (ARGS, "if step % args.every == 0: pass\nif step % args.nested['log'] == 0: pass\nend()", [10, 25]),
        (ARGS, "if step % (2 * args.every) == 0 or step % 3 == 0: pass\nend()", [3, 20]),  # on one line
        ("def log(n):\n    if n % 20 == 0: pass", "log(step)\nend()", [20]),
        ("batches = 'abcd'", "if step % len(batches) == 0: pass\nend()", [4]),
        ("", "if step & 63 == 0: pass\nend()", [64]),
        ("", "for n in (1, 3, 4):\n    if step % n == 0: pass\nend()", [3, 4]),  # callbacks, each with its interval
        (
            "",
            "for n in (6, 4, 7 + step):\n    if step % n: continue\nend()",
            [4, 6],
        ),  # one divisor is none of the steps
        ("", "for n in range(2, 40):\n    if step % n == 0: pass\nend()", []),  # a sieve
        ("", "if step & (step - 1) == 0: pass\nend()", []),  # powers of two have no period
        # A condition that is never asked is no branch.
        ("log = False", "if log and step % 10 == 0: pass\nend()", []),
        ("log = True", "if log and step % 10 == 0: pass\nend()", [10]),
        ("mode = 'train'", "if mode == 'test' and (step % 10 == 0 or step % 4 == 0): pass\nend()", []),
        ("mode = 'train'", "if mode == 'test' or step % 10 == 0: pass\nend()", [10]),
        ("quiet = True", "if quiet or not step % 10: pass\nend()", []),
        ("writer = None", "if writer is not None and step % 10 == 0: pass\nend()", []),
        ("import types; writer = types.SimpleNamespace()", "if writer and step % 10 == 0: pass\nend()", [10]),
        ("", "if step > 1000 and step % 10 == 0: pass\nend()", [10]),  # it will be asked
        ("", "if not step & 8: pass\nend()", [16]),
        ("", "rest = step % 12\nif rest == 0: pass\nend()", [12]),
        ("", "_, rest = divmod(step, 6)\nif not rest: pass\nend()", [6]),
        ("", "if divmod(step, 9)[1] == 0: pass\nend()", [9]),
        ("", "place = step % 12\nx = 'abcdefghijkl'[place]\nend()", []),  # an index, and no condition
        ("n = 0", "n += 1\nif n == 15:\n    n = 0\nend()", [15]),
        ("n = 0", "n += 1\nif n > 15:\n    n = 0\nend()", [16]),
        ("n = 7", "n -= 1\nif n <= 0:\n    n = 30\nend()", [30]),
        ("due = 40", "if step >= due:\n    due += 40\nend()", [40]),
        ("due = 40", "if due <= step:\n    due = step + 20\nend()", [20]),
        ("due = 40", "if step >= due:\n    due = step + 20\nend()", [20]),
        ("best = 9", "if step * step < best:\n    best = 0\nend()", []),  # it grows unevenly
        # As DeepSpeed reads its interval.
        (
            f"{ARGS}\nclass E:\n    def every(self): return args.every\ne = E()",
            "if step % e.every() == 0: pass\nend()",
            [10],
        ),
        ("class E:\n    def every(self): return print() or 9\ne = E()", "if step % e.every() == 0: pass\nend()", []),
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


@pytest.mark.parametrize(
    ("counter", "steps", "periods"),
    [
        ("max(0, step - 2)", LEAST_STEPS + 1, [10]),  # 0, 0, 1, 2: the first batch takes two steps
        ("(step - 1) // 2", LEAST_STEPS + 1, []),  # 0, 0, 1, 1
        ("step // 2", LEAST_STEPS, []),  # 0, 1, 1
        ("0", LEAST_STEPS, []),
    ],
)
def test_a_counter_that_first_stands_still(tmp_path: Path, counter: str, steps: int, periods: list[int]) -> None:
    body = f"if ({counter}) % 10 == 0: pass\nend()"
    assert [branch.every for branch in watched(tmp_path, body, steps=steps).branches()] == periods


@pytest.mark.parametrize(
    ("before", "body", "awaited"),
    [
        # The steps 1 to 3 are watched.
        ("", "if step in (30, 60): pass\nend()", [("list", 27)]),
        ("marks = [30, 60]", "if step in marks: pass\nend()", [("list", 27)]),
        ("marks = {30: 0.1, 60: 0.01}", "if step + 1 in marks: pass\nend()", [("list", 26)]),
        ("", "if step == 1000: pass\nend()", [("number", 997)]),
        ("", "if 1000 == step: pass\nend()", [("number", 997)]),
        ("", "if step >= 1000: pass\nend()", [("number", 997)]),
        ("", "if 1000 < step: pass\nend()", [("number", 998)]),
        ("n = 0", "n += 32\nif n >= 1000: pass\nend()", [("number", 28)]),
        ("log = True", "if log and step == 40: pass\nend()", [("number", 37)]),
        ("flags = iter(7 * [False] + [True])", "if next(flags):\n    print(1)\nend()", [("iterator", None)]),
        ("flags = iter(7 * [False] + [True])", "log = next(flags)\nif log:\n    print(1)\nend()", [("iterator", None)]),
        ("flags = iter(7 * [False] + [True])", "if next(flags): print(1)\nend()", [("iterator", None)]),
        ("flags = iter(7 * [False] + [True])", "log = next(flags)\nif log: print(1)\nend()", [("iterator", None)]),
        ("flags = iter(7 * [False] + [True])", "print(1) if next(flags) else None\nend()", [("iterator", None)]),
        ("", "print(1) if step == 1000 else None\nend()", [("number", 997)]),
        # It was taken, or comes no more.
        ("flags = iter(100 * [True])", "if next(flags): print(1)\nend()", []),
        ("flags = iter(100 * [True])", "print(1) if next(flags) else None\nend()", []),
        ("flags = iter(100 * [True])", "if next(flags):\n    print(1)\nend()", []),
        ("", "if step in (2, 60): pass\nend()", []),
        ("", "if step in (0, -1): pass\nend()", []),
        ("", "if step == 2: pass\nend()", []),
        ("", "if step >= 1: pass\nend()", []),
        ("log = False", "if log and step == 40: pass\nend()", []),
        # It ends the loop, has a period, counts no steps, or is no number.
        ("", "if step == 1000: break\nend()", []),
        ("", "if step % 10 == 9: pass\nend()", []),
        ("due = 40", "if step >= due:\n    due += 40\nend()", []),
        ("", "for n in range(4):\n    if n == 7: pass\nend()", []),
        ("", "if step * step == 100: pass\nend()", []),
        ("", "if 'a' in 'abc' and str(step) in ('x', 'y'): pass\nend()", []),
    ],
)
def test_a_branch_that_waits_for_its_step_is_seen_until_it_is_taken(
    tmp_path: Path, before: str, body: str, awaited: list[tuple[str, int | None]]
) -> None:
    found = watched(tmp_path, body, before).awaited()
    assert [(branch.awaits, branch.in_steps) for branch in found] == awaited


def test_steps_behind_the_watched_ones_come_nearer_to_the_branch(tmp_path: Path) -> None:
    body = "if step in (30, 60): pass\nend()"
    assert [branch.in_steps for branch in watched(tmp_path, body, more=26).awaited()] == [1]
    assert watched(tmp_path, body, more=27).awaited() == []


def test_an_iterator_is_watched_until_it_lets_the_program_branch(tmp_path: Path) -> None:
    file = tmp_path / "training.py"
    file.write_text(
        "def log(step):\n    if step == 1000: print()\n"
        "def asks():\n    if next(flags):\n        pass\n"
        "for step in range(12):\n    log(step)\n    asks()\n    end()\n"
    )
    counters = StepCounters()
    counters.watch()
    numbers: list[int] = []
    watched: list[bool] = []

    def end() -> None:
        counters.step_ends()
        if counters.watched_enough:
            counters.counters_known()
        watched.append(sys.gettrace() is not None)
        numbers.append(len(counters.awaited()))

    flags = iter([*(number == 8 for number in range(12))])
    try:
        exec(compile(file.read_text(), str(file), "exec"), {"end": end, "flags": flags})
    finally:
        counters.stop()
    assert watched == [True] * 8 + [False] * 4
    assert numbers[2:] == [2] * 6 + [1] * 4
    (branch,) = counters.awaited()
    assert (branch.line, branch.in_steps) == (2, 1000 - 11)


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


def test_a_function_is_watched_again_after_its_first_watch_has_ended() -> None:
    """As where a program's second optimizer turns out to end its steps."""
    first, second = StepCounters(), StepCounters()
    first.watch()
    first.stop()
    for step in range(1 + LEAST_STEPS):
        if step == 0:
            second.watch()
        if step % 7 == 0:
            pass
        second.step_ends()
    second.stop()
    assert [branch.every for branch in second.branches()] == [7]


def test_variables_of_a_watched_function_are_freed_as_without_the_watch() -> None:
    """Or the tensors of a line would count in the memory of later ones."""

    class Activations:
        pass

    counters = StepCounters()
    made = []
    alive = []
    counters.watch()
    for step in range(2 + LEAST_STEPS):
        if step % 7 == 0:
            pass
        activations = Activations()
        made.append(weakref.ref(activations))
        alive.append(sum(reference() is not None for reference in made))
        if step == LEAST_STEPS:
            counters.stop()
        counters.step_ends()
    assert alive == [1] * (2 + LEAST_STEPS)


def test_variables_that_a_watched_function_has_asked_for_stay() -> None:
    counters = StepCounters()
    epochs = 5
    counters.watch()
    settings = locals()
    for step in range(epochs):
        if step % 7 == 0:
            pass
        counters.step_ends()
    counters.stop()
    assert settings["epochs"] == epochs


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
