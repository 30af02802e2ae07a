"""A program that asks for the accelerator before and after a prediction, and then compiles a function."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from steptrace.predict import predict_syncs


def differences_after_a_prediction() -> list[str]:
    """Run this program; returns its lines, one for each answer that a prediction has changed."""
    done = subprocess.run([sys.executable, str(Path(__file__))], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def answers() -> dict[str, str]:
    """What PyTorch answers about the current accelerator, or the error that it raises."""
    return {
        "device index": _answer(torch.accelerator.current_device_index),
        "stream": _answer(lambda: torch.accelerator.current_stream().device),
        "synchronize": _answer(torch.accelerator.synchronize),
        "set_device_index": _answer(lambda: torch.accelerator.set_device_index(0)),
    }


def _answer(call: Callable[[], object]) -> str:
    try:
        return repr(call())
    except RuntimeError as error:
        return str(error)


def main() -> None:
    """Print each answer that differs; fail where compiled code of the CPU does."""
    before = answers()
    with predict_syncs():
        torch.ones(3, device="cuda").sum()
        assert torch.accelerator.current_device_index() == 0
    after = answers()
    for question in before:
        if before[question] != after[question]:
            sys.stdout.write(f"{question}: {before[question]} before, {after[question]} after\n")
    compiled = torch.compile(lambda x: 2 * x, backend="eager")
    assert compiled(torch.ones(3)).tolist() == [2, 2, 2]


if __name__ == "__main__":
    main()
