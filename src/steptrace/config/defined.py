"""Checks that every `_target_` of a configuration exists, before anything runs and without importing it.

A `_target_` is looked up in the source of its module: PyTorch takes seconds to import, and a user's module may do
anything. If the source cannot say which names exist, such as in a module that creates names when it is imported, the
`_target_` is taken to exist.
"""

import ast
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from steptrace.config.compose import targets
from steptrace.config.digest import Cache
from steptrace.errors import ConfigError, meant

#: A module that calls one of these may make names that its source does not show.
_DYNAMIC: Final = ("globals", "exec", "setattr", "vars", "__getattr__")
_INIT: Final = "__init__.py"
_SOURCES: Final = tuple(importlib.machinery.SOURCE_SUFFIXES)
_COMPILED: Final = tuple(importlib.machinery.EXTENSION_SUFFIXES)
#: Modules of the standard library that another one has as its own: `os.path` is one of these.
_PARTS_OF: Final = {"os": ("posixpath", "ntpath")}


def check_defined(config: Mapping[str, Any], roots: Sequence[Path], cache: Cache, *, where: str) -> None:
    """Check that each `_target_` names something that its module defines.

    Args:
        config: a resolved configuration.
        roots: the folders of `python_path`, which are searched before Python's own path.
        cache: keeps the parsed files.
        where: the file and variant, for the message.

    Raises:
        ConfigError: there is no such module, or it has no such name.
    """
    for key, target in targets(config):
        parts = str(target).split(".")
        located = _find(parts, [*roots, *map(Path, filter(None, sys.path))])
        if located is None:
            raise ConfigError(
                f"{key} is '{target}', and there is no module '{parts[0]}'",
                where=where,
                next_step="install the package, or correct the name or `python_path`",
                keys=tuple(key.split(".")),
            )
        module, rest = located
        names = _names(module, cache) if rest else None
        leads_to = _imported_from(module, rest[0], cache) if len(rest) > 1 else None
        if leads_to is not None and leads_to != parts[0] and leads_to not in _PARTS_OF.get(parts[0], ()):
            raise ConfigError(
                f"{key} is '{target}', and '{rest[0]}' there is the package '{leads_to}', which the module imports",
                where=where,
                expected="a class or function that is defined in the package that its name says",
                next_step="name it by the package that defines it",
                keys=tuple(key.split(".")),
            )
        if names is not None and rest[0] not in names:
            inside = ".".join(parts[: len(parts) - len(rest)])
            raise ConfigError(
                f"{key} is '{target}', and '{inside}' has no '{rest[0]}'",
                where=where,
                expected=f"a class or function of {module}",
                next_step=meant(rest[0], names, likeness=0.6),
                keys=tuple(key.split(".")),
            )


def _find(parts: Sequence[str], folders: Iterable[Path]) -> tuple[Path, list[str]] | None:
    """The file of the innermost module that a dotted name leads into, and the rest of the name; None without one."""
    searched = list(folders)
    # A folder without `__init__.py` counts as a package only if no folder has a module of that name.
    modules = (_module(folder, parts[0]) for folder in searched)
    file = next(filter(None, modules), None) or next(
        (f / parts[0] / _INIT for f in searched if (f / parts[0]).is_dir()), None
    )
    if file is None:
        return None if _is_importable(parts[0]) is False else (Path(parts[0]), [])
    rest = list(parts[1:])
    while rest and file.name.startswith("__init__."):
        inner = _module(file.parent, rest[0])
        if inner is None and not (file.parent / rest[0]).is_dir():
            break
        file = inner or file.parent / rest[0] / _INIT
        del rest[0]
    return file, rest


def _is_importable(name: str) -> bool:
    """Whether Python finds a module elsewhere: it is built in, or a hook finds it, as in an editable installation."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _module(folder: Path, name: str) -> Path | None:
    """The file of a module, or the `__init__` of a package."""
    package = folder / name
    for suffix in (*_SOURCES, *_COMPILED):
        for file in (package / f"__init__{suffix}", folder / f"{name}{suffix}"):
            if file.is_file():
                return file
    return None


def _names(module: Path, cache: Cache, seen: frozenset[Path] = frozenset()) -> set[str] | None:
    """The names that a module's source defines; None if the source cannot say."""
    if module in seen:
        return set()
    if module.suffix != ".py" or not module.is_file():
        return None
    content = module.read_bytes()
    defined = cache.get(b"names\0" + sys.version.encode() + content, lambda: _in_source(content))
    if defined is None:
        return None
    names = set(defined[0])
    stars = defined[1]
    for level, base in stars:
        start = module.parent
        for _ in range(level - 1):
            start = start.parent
        folders = [start] if level else [Path(path) for path in sys.path if path]
        inner = _find(base.split("."), folders) if base else (start / _INIT, [])
        more = None if inner is None or inner[1] else _names(inner[0], cache, seen | {module})
        if more is None:
            return None
        names |= more
    return names


def _imported_from(module: Path, name: str, cache: Cache) -> str | None:
    """The package that a name of a module stands for, if the name does nothing but import it; else None."""
    if module.suffix != ".py" or not module.is_file():
        return None
    content = module.read_bytes()
    imported = cache.get(b"imported\0" + sys.version.encode() + content, lambda: _packages_in(content))
    package = imported.get(name)
    return None if package is None else str(package)


def _packages_in(content: bytes) -> dict[str, str]:
    """The names that a module's source binds by `import` alone, each with its package."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return {}
    packages: dict[str, str] = {}
    bound: set[str] = set()
    for node in _outside_functions(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                packages[alias.asname or top] = top
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            bound.update(alias.asname or alias.name for alias in node.names)
    return {name: package for name, package in packages.items() if name not in bound}


def _in_source(content: bytes) -> tuple[list[str], list[tuple[int, str]]] | None:
    """The names that a module defines, and its `from X import *` as (level, dotted name); None if it cannot be said."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # its import will raise the error
        return None
    names: set[str] = set()
    stars: list[tuple[int, str]] = []
    for node in _outside_functions(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Import):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names if alias.name != "*")
            stars += [(node.level, node.module or "") for alias in node.names if alias.name == "*"]
    return None if names & {*_DYNAMIC} else (sorted(names), stars)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that is executed when the module is imported, without the bodies of functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _outside_functions(child)
