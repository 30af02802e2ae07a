"""The fixture `assert_no_syncs`, in a run of pytest of its own, as users have it."""

from importlib import metadata

import pytest

pytest_plugins = ["pytester"]

STEP = """
import torch

model = torch.nn.Linear(4, 1)

def step(reads=1):
    global model
    model = model.to("cuda")
    loss = model(torch.ones(2, 4, device="cuda")).sum()
    for _ in range(reads):
        loss.item()
"""
#: A test each: its name tells whether it must pass; a failure names the line that reads the loss.
TESTS = """
import sys
import torch
from steps import step

def test_passes_without_syncs(assert_no_syncs):
    with assert_no_syncs() as syncs:
        step(); syncs.reset(); step(reads=0)

def test_passes_within_its_budget(assert_no_syncs):
    with assert_no_syncs(budget=1) as syncs:
        step(); syncs.reset(); step()

def test_passes_with_an_allowed_line(assert_no_syncs):
    with assert_no_syncs(allow=["steps.py:10"]) as syncs:
        step(); syncs.reset(); step()

def test_passes_with_an_allowed_function(assert_no_syncs):
    with assert_no_syncs(allow=["step"]) as syncs:
        step(); syncs.reset(); step()

def test_passes_with_several_steps_within_it(assert_no_syncs):
    with assert_no_syncs(budget=1) as syncs:
        step(); syncs.reset()
        for _ in range(3):
            step(); syncs.step_ends()

def test_fails_with_a_sync(assert_no_syncs):
    with assert_no_syncs() as syncs:
        step(); syncs.reset(); step()

def test_fails_over_its_budget(assert_no_syncs):
    with assert_no_syncs(budget=1) as syncs:
        step(); syncs.reset(); step(reads=2)

def test_fails_with_another_line_allowed(assert_no_syncs):
    with assert_no_syncs(allow=["steps.py:9"]) as syncs:
        step(); syncs.reset(); step()

def test_fails_with_one_step_over_it(assert_no_syncs):
    with assert_no_syncs(budget=1) as syncs:
        step(); syncs.reset()
        for reads in (0, 2, 0):
            step(reads); syncs.step_ends()

def test_fails_where_nothing_runs_on_the_gpu(assert_no_syncs):
    with assert_no_syncs():
        torch.ones(2).sum().item()
"""


def test_the_plug_in_is_found_by_pytest() -> None:
    points = {point.name: point.value for point in metadata.entry_points(group="pytest11")}
    assert points["steptrace"] == "steptrace.pytest_plugin"


def test_a_step_is_held_to_its_budget(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(steps=STEP)
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-v")
    ended = {
        line.split("::")[1].split()[0]: line.split()[1] for line in result.outlines if "::" in line and "%]" in line
    }
    assert ended == {
        line.partition("(")[0].removeprefix("def "): "PASSED" if "_passes_" in line else "FAILED"
        for line in TESTS.splitlines()
        if line.startswith("def test_")
    }
    result.stdout.fnmatch_lines(["*steps.py:10*"])
    result.stdout.fnmatch_lines(["*steps.py:9"])  # the entry that allows nothing, which may be misspelt
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_the_plug_in_imports_no_pytorch_in_a_run_without_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\n\ndef test_it():\n    assert 'torch' not in sys.modules\n")
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_without_pytorch_a_test_says_how_to_install_it(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import sys\nsys.modules['torch'] = None\n")
    pytester.makepyfile("def test_it(assert_no_syncs):\n    with assert_no_syncs():\n        pass\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.ret == 1
    text = result.stdout.str()
    assert "pip install 'steptrace[predict]'" in text
    assert "recorder.py" not in text  # where the import failed is of no use
