"""Whole training steps that need PyTorch alone, as PyTorch's CUDA host code confirms them (see `programs.py`)."""

import pytest

import programs

NAMES = [name for name, program in programs.PROGRAMS.items() if program.needs == "torch"]


@pytest.mark.parametrize("name", NAMES)
def test_a_program_is_predicted(name):
    assert programs.predict(name) == (None, None, programs.PROGRAMS[name].expected.predicted, False, "")


def test_programs_that_differ_have_a_reason():
    for name, program in programs.PROGRAMS.items():
        assert bool(program.reason) is (len(set(program.expected[:3])) > 1), name
