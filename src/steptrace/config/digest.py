"""Digests that decide whether a run, a table or a page is up to date.

The digest of code is taken over syntax trees without docstrings, so comments, formatting and file times cost nothing
and any change of meaning counts. It covers what is executed and no more: a module and all it imports from steptrace.
"""

import ast
import functools
import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import steptrace
from steptrace.errors import ConfigError

_PACKAGE = Path(steptrace.__file__).parent
#: Not part of the digest: variants that differ in these only are the same training.
_LABELS = ("study", "variant", "digest")
#: A folder on the python_path with more files is probably a data or home directory.
_MOST_FILES = 2_000
_SKIPPED = ("__pycache__", "py.typed")
#: Path -> size and times, package and content, digest, imported names.
_known: dict[str, tuple[str, str, str, tuple[str, ...]]] = {}
#: Package and content -> digest, imported names: what a copied folder or another checkout has in common with this one.
_contents: dict[str, tuple[str, tuple[str, ...]]] = {}


def config_digest(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a resolved configuration, its labels left out."""
    content = {key: value for key, value in config.items() if key not in _LABELS}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def code_digest(
    modules: Iterable[str] = (),
    *,
    scripts: Iterable[Path] = (),
    folders: Iterable[Path] = (),
    without: Collection[str] = (),
) -> str:
    """Return the SHA-256 of code.

    Args:
        modules: dotted names; those below steptrace count with everything they import from steptrace and the data
            files beside it, names inside a module count as their module, others are ignored. `a.b.*` is every
            module of the package `a.b`.
        scripts: Python files outside the package, followed in the same way.
        folders: folders that count as a whole (Python by syntax tree, other files by their bytes).
        without: files and folders below these folders, by their path there, that do not count.

    Raises:
        ConfigError: a folder is missing or far too large.
    """
    parts: dict[str, str] = {}
    names = list(modules)
    for script in scripts:
        parts[f"script/{script.name}"], imports = _scan(script)
        names += imports
    seen: set[str] = set()
    packages = {""}
    while names:
        name = names.pop()
        if name in seen:
            continue
        seen.add(name)
        for place, path in _module_files(_PACKAGE, name).items():
            if place in parts:
                continue
            parts[place], imports = _scan(path)
            names += imports
            # A package's templates and sources of other languages count with any of its modules.
            package = place.rpartition("/")[0]
            if package not in packages:
                packages.add(package)
                data = (file for file in _files(path.parent) if file.suffix != ".py")
                parts.update({file.relative_to(_PACKAGE).as_posix(): _scan(file)[0] for file in data})
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError("there is no such folder", where=folder, next_step="correct python_path")
        parts.update(
            {f"{folder.name}/{file.relative_to(folder).as_posix()}": _scan(file)[0] for file in _files(folder, without)}
        )
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def versions(targets: Iterable[str]) -> dict[str, str]:
    """Return the installed version of every distribution that dotted `_target_` names lead into, steptrace left out."""
    found: dict[str, str] = {}
    for top in sorted({name.split(".", maxsplit=1)[0] for name in targets} - {"steptrace"}):
        try:
            found[top] = importlib.metadata.version(top)
        except importlib.metadata.PackageNotFoundError:
            continue  # a user's own module: its folder is on the python_path and counts by content
    return found


def extension_digests(folder: Path) -> dict[str, str]:
    """Every byte of the extension's sources, and torch's version. The loader asks for a library of these very bytes."""
    total = hashlib.sha256()
    sources = [*folder.glob("csrc/*"), *folder.glob("python/steptrace_giou/*.py")]
    for path in sorted(sources):
        total.update(b"%b\0%b\0" % (path.name.encode(), path.read_bytes()))
    return {"config": versions(["torch"])["torch"], "code": total.hexdigest()[:16]}


def recall_files(cache: Path) -> None:
    """Begin with what `files_read` told an earlier process: a quarter of what a call takes that has nothing to do."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        kept = json.loads(cache.read_text(encoding="utf-8"))
        if kept["python"] == sys.version:  # another one may have other syntax trees
            files = {
                str(path): (str(key), str(content), str(digest), tuple(names))
                for path, (key, content, digest, names) in kept["files"].items()
            }
            _contents.update({content: (digest, names) for _, content, digest, names in files.values()})
            _known.update(files)


def files_read() -> str:
    """What was found in the files that were read, by their path, size and times, as JSON."""
    return json.dumps({"python": sys.version, "files": _known})


def _scan(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a file, and the dotted names a Python file imports anywhere in it."""
    status = path.stat()
    key = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    known = _known.get(str(path))
    if known is None or known[0] != key:
        text = path.read_bytes()
        # Relative imports mean something else in another package.
        package = path.parent.relative_to(_PACKAGE.parent).as_posix() if path.is_relative_to(_PACKAGE) else ""
        content = f"{package}/*{path.suffix} {hashlib.sha256(text).hexdigest()}"
        if content not in _contents:
            _contents[content] = _read(path, text)
        known = _known[str(path)] = (key, content, *_contents[content])
    return known[2], known[3]


def _read(path: Path, content: bytes) -> tuple[str, tuple[str, ...]]:
    names: tuple[str, ...] = ()
    if path.suffix == ".py":
        try:
            tree = ast.parse(content)
        except SyntaxError:
            pass  # whoever runs it will say so; here its bytes do
        else:
            names = tuple(_imported(tree, path))
            content = ast.dump(_without_docstrings(tree)).encode()
    return hashlib.sha256(content).hexdigest(), names


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
    return tree


def _imported(tree: ast.Module, path: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                if not path.is_relative_to(_PACKAGE):
                    continue  # a user's own package, which counts as a whole
                package = path.parent.relative_to(_PACKAGE.parent).parts
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@functools.cache
def _module_files(package: Path, name: str) -> dict[str, Path]:
    """Return the files that importing the dotted name executes, its packages' and its module's own, by their places.

    Trailing parts that are no module (a class, a function) are left out; names outside the package give no file. What
    one process has found stays: it plans once, and most names are asked for by many modules.
    """
    parts = name.split(".")
    if parts[0] != package.name:
        return {}
    if parts[-1] == "*":
        files = sorted(package.joinpath(*parts[1:-1]).rglob("*.py"))
    else:
        files = [package / "__init__.py"]
        for length in range(2, len(parts) + 1):
            path = package.joinpath(*parts[1:length])
            if not (path / "__init__.py").is_file():
                files += [path.with_suffix(".py")] * path.with_suffix(".py").is_file()
                break
            files.append(path / "__init__.py")
    return {file.relative_to(package).as_posix(): file for file in files}


def _files(folder: Path, without: Collection[str] = ()) -> list[Path]:
    """Return the files below a folder that can be code, in a fixed order."""
    found: list[Path] = []
    for parent, folders, names in os.walk(folder):
        skipped = {*_SKIPPED, *(Path(path).name for path in without if folder / Path(path).parent == Path(parent))}
        folders[:] = [name for name in folders if name not in skipped and not name.startswith(".")]
        found += [Path(parent, name) for name in names if name not in skipped and not name.startswith(".")]
        if len(found) > _MOST_FILES:
            raise ConfigError(
                f"holds more than {_MOST_FILES} files", where=folder, next_step="name a folder that holds only code"
            )
    return sorted(found)
