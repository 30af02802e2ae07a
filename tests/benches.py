"""Imports the programs of bench/, for tests."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[1] / "bench"


def bench_module(name: str) -> Any:
    """The module bench/NAME.py, by its file's name, by which another of them may import it."""
    path = BENCH / f"{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
