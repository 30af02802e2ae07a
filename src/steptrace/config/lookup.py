"""Whether a dotted `_target_` leads to anything, told from source files alone: nothing is imported.

A misspelt class is then told before the first training, not by each one. What source cannot tell (compiled modules,
star imports, names made at run time) is taken to be there.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from steptrace.errors import ConfigError
from steptrace.names import near


def check_target_exists(target: str, folders: Sequence[Path], *, where: str) -> None:
    """Raise `ConfigError` if `target` leads nowhere.

    Args:
        target: dotted name of a class or function, perhaps of an attribute of one.
        folders: searched before the installed packages, as in `python_path`.
        where: the study and variant, for the message.
    """
    parts = target.split(".")
    spec, depth = find_module(parts, folders)
    if spec is None:
        raise ConfigError(
            f"_target_ '{target}': there is no module '{parts[0]}'",
            where=where,
            next_step="install it, or list its folder in `python_path`",
        )
    if depth == len(parts):
        raise ConfigError(f"_target_ '{target}' is a module", where=where, expected="a class or function in it")
    names = _names_of(spec)
    if names is not None and parts[depth] not in names:
        raise ConfigError(
            f"_target_ '{target}': there is no '{parts[depth]}' in {'.'.join(parts[:depth])}",
            where=where,
            next_step=_meant(parts[depth], names, _defined_in(spec)),
        )


def find_module(parts: Sequence[str], folders: Sequence[Path]) -> tuple[ModuleSpec | None, int]:
    """Return the innermost module that the beginning of a dotted name leads to, and how many parts that are."""
    spec = PathFinder.find_spec(parts[0], [str(folder) for folder in folders]) or _installed(parts[0])
    depth = 1
    while spec is not None and depth < len(parts) and spec.submodule_search_locations:
        below = PathFinder.find_spec(".".join(parts[: depth + 1]), list(spec.submodule_search_locations))
        if below is None:
            break
        spec, depth = below, depth + 1
    return spec, depth


def _meant(name: str, names: Iterable[str], defined: Iterable[str]) -> str:
    """A hint for a misspelt name: what the module defines goes before what it merely imports."""
    public = [[name for name in part if not name.startswith("_")] for part in (defined, names)]
    hints = [near(name, part) for part in public if part]
    return next((hint for hint in hints if hint.startswith("did you mean")), hints[0] if hints else near(name, ()))


def _installed(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except (ImportError, ValueError):  # a module that stands in for itself, such as `__main__`
        return None


def _names_of(spec: ModuleSpec) -> frozenset[str] | None:
    """The names that a module's file gives to anything, and its submodules; None where the file cannot tell."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    path = Path(spec.origin)
    names = _names_in(path, path.stat().st_mtime_ns)
    if names is None:
        return None
    files = path.parent.iterdir() if spec.submodule_search_locations else ()
    return names | {file.name.partition(".")[0] for file in files}


def _defined_in(spec: ModuleSpec) -> list[str]:
    """The classes and functions that a module's file defines itself."""
    tree = ast.parse(Path(str(spec.origin)).read_bytes())  # its names were read, so it is Python
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]


@cache
def _names_in(path: Path, mtime_ns: int) -> frozenset[str] | None:  # noqa: ARG001 - part of the cache's key
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError):
        return None  # whoever imports it will say so, with the line
    names = set(_given(tree.body))
    return None if names & {"*", "__getattr__"} else frozenset(names)


def _given(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                yield from (name.id for name in ast.walk(node) if isinstance(name, ast.Name))
            case ast.Expr(value=ast.Call()):
                if any(isinstance(name, ast.Name) and name.id in ("globals", "setattr") for name in ast.walk(node)):
                    yield "*"
            case ast.For() | ast.While():
                yield "*"  # whatever a loop at the top of a module does, it may well be making names
            case _:
                for inner in ("body", "orelse", "finalbody"):
                    yield from _given(getattr(node, inner, ()))
                for handler in getattr(node, "handlers", ()):
                    yield from _given(handler.body)
