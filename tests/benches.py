"""Imports the programs of bench/, for tests."""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[1] / "bench"


def bench_module(name: str) -> Any:
    """The module bench/NAME.py. The programs beside it that it imports are loaded first; each is loaded once."""
    path = BENCH / f"{name}.py"
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    for imported in _imported(path):
        if (BENCH / f"{imported}.py").is_file():
            bench_module(imported)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _imported(path: Path) -> Iterator[str]:
    """The names of the modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module
