"""Digests that decide whether a run, a table or a page is up to date, and what earlier calls have computed.

The digest of code is taken over syntax trees without docstrings, so comments, formatting and file times cost nothing
and any change of meaning counts. It covers what is executed and no more: a module and all that it imports from
steptrace or from the user's own folders.
"""

import ast
import functools
import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

import steptrace
from steptrace.errors import ConfigError
from steptrace.files import write_bytes

#: With more entries than this, the cache keeps only those that were asked for now.
_MOST_ENTRIES: Final = 20_000
_PACKAGE = Path(steptrace.__file__).parent
#: A folder with more files is probably a data or home directory.
_MOST_FILES = 2_000
#: A call of it imports all modules of the package that it names (`steptrace.documents.subject.modules_in`).
_IMPORTS_PACKAGE: Final = "modules_in"
#: Of what is kept of a file: raise it when a file of the same content is read in another way.
_READING: Final = 2
_SKIPPED: Final = ("__pycache__", "py.typed")
#: Files that code reads by their names: settings and sources, also of other languages. Others may be what it writes.
SETTINGS: Final = (".py", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".sh", ".cu", ".cuh", ".c", ".cc", ".cpp", ".h")


class Cache:
    """Plain data by a key that stands for everything that it was made of, kept in files.

    Args:
        path: the file that `save` writes.
        more: other files to read, such as one that came with the results.
    """

    def __init__(self, path: Path | None, *more: Path) -> None:
        self._path, self._new = path, False
        self._values: dict[str, Any] = {}
        self._used: set[str] = set()
        for file in (*more, *([path] if path else [])):
            with suppress(OSError, msgspec.DecodeError):  # none yet, or damaged
                self._values |= msgspec.msgpack.decode(file.read_bytes(), type=dict[str, Any])

    def get(self, made_of: bytes, make: Callable[[], Any]) -> Any:
        """The value of a key, made now if it is new."""
        key = hashlib.sha256(made_of).hexdigest()
        self._used.add(key)
        if key not in self._values:
            self._values[key], self._new = make(), True
        return self._values[key]

    def save(self) -> None:
        """Write the file if there is something new."""
        if self._new and self._path is not None:
            values = self._values
            if len(values) > _MOST_ENTRIES:
                values = {key: values[key] for key in self._used}
            self._write(self._path, values)
            self._new = False

    def save_used(self, path: Path) -> None:
        """Write what was asked for so far to another file, unless the same is there."""
        used = {key: self._values[key] for key in sorted(self._used)}
        self._write(path, used)

    def _write(self, path: Path, values: dict[str, Any]) -> None:
        with suppress(OSError):  # it only saves time
            content = msgspec.msgpack.encode(values)  # unlike JSON, it has infinity
            if not path.is_file() or path.read_bytes() != content:
                write_bytes(path, content)


class _File(NamedTuple):
    """A file's digest; of a Python file also the dotted names that it imports, and strings that may name a file."""

    digest: str
    imports: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


class Code:
    """Digests of code for one plan, which reads each file once; what was parsed is kept in `cache`."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._files: dict[tuple[Path, Path], _File] = {}

    def digest(
        self,
        modules: Iterable[str] = (),
        *,
        scripts: Iterable[Path] = (),
        roots: Sequence[Path] = (),
        folders: Iterable[Path] = (),
        without: Collection[Path] = (),
        installed: bool = False,
    ) -> str:
        """Return the SHA-256 of code.

        Args:
            modules: dotted names; those below steptrace count with everything they import from steptrace and the data
                files beside it, those in `roots` with everything they import from steptrace or `roots` and the
                settings that they name. Names inside a module count as their module, others are ignored. `a.b.*` is
                every module of the package `a.b`.
            scripts: Python files outside the package, followed in the same way.
            roots: folders that are searched for modules, such as those of `python_path`.
            folders: folders that count as a whole (Python by syntax tree, other files by their bytes).
            without: files and folders that do not count, though they are in `roots` or `folders`.
            installed: whether the versions of installed packages count that modules in `roots` import.

        Raises:
            ConfigError: one of `folders` is far too large.
        """
        parts: dict[str, str] = {}
        names, seen, packages = list(modules), set[str](), {_PACKAGE}
        imported = set[str]()  # by modules in `roots`

        def count(place: str, path: Path, root: Path, *, users: bool = True) -> None:
            """Count a file, and what it imports and names."""
            if place in parts:
                return
            file = self._scan(path, root)
            parts[place] = file.digest
            names.extend(file.imports)
            others: Iterable[Path] = ()
            if users:
                others = _named_settings(file, path.parent, root, without)
                if "importlib" in file.imports and roots:  # it may import any module of its folder
                    others = (*others, *(other for other in files_below(root, without) or () if other.suffix == ".py"))
            elif path.parent not in packages:
                packages.add(path.parent)
                others = _data_beside(path.parent)
            parts.update({os.path.relpath(other, root): self._scan(other, root).digest for other in others})

        for number, script in enumerate(scripts):
            count(f"script {number}/{script.name}", script, script.parent)
        while names:
            name = names.pop()
            if name in seen:
                continue
            seen.add(name)
            for place, path in _package_files(_PACKAGE, name).items():
                count(place, path, _PACKAGE.parent, users=False)
            for number, root in enumerate(roots):
                for path in _module_files(root, name):
                    count(f"{number}/{path.relative_to(root).as_posix()}", path, root)
                    imported.update(self._scan(path, root).imports)
        for folder in folders:
            if (files := files_below(folder, without)) is None:
                raise ConfigError(
                    f"folder has more than {_MOST_FILES} files, too many to be code",
                    where=folder,
                    next_step="name a folder that holds only code",
                )
            for path in files:
                parts[f"{folder.name}/{path.relative_to(folder).as_posix()}"] = self._scan(path, folder).digest
        if installed:
            own = {name for name in imported if any(_module_files(root, name) for root in roots)}
            parts.update({f"version of {name}": version for name, version in versions(imported - own).items()})
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _scan(self, path: Path, root: Path) -> _File:
        """A file's digest, imports and texts; relative imports begin from `root`."""
        if (path, root) not in self._files:
            content = path.read_bytes()
            package = os.path.relpath(path.parent, root)
            made_of = f"{sys.version} {_READING} {package} {path.suffix}\0".encode() + content
            users = root != _PACKAGE.parent
            self._files[path, root] = _File(
                *self._cache.get(made_of, lambda: _read(path, package, content, users=users))
            )
        return self._files[path, root]


def versions(targets: Iterable[str]) -> dict[str, str]:
    """Return the installed version of each distribution that dotted names lead into, steptrace left out.

    A distribution's name need not be that of its modules: `PIL` comes from pillow, `sklearn` from scikit-learn. A
    module that no distribution holds is the user's own, and counts by its content.
    """
    installed: dict[str, str] = {}
    for module in sorted({name.split(".", maxsplit=1)[0] for name in targets} - {"steptrace"}):
        for distribution in _distributions(module):
            with suppress(importlib.metadata.PackageNotFoundError):
                installed[distribution] = importlib.metadata.version(distribution)
    return installed


@functools.cache
def _distributions(module: str) -> tuple[str, ...]:
    """The distributions that hold a module, by name; several may share a namespace package."""
    if module in sys.stdlib_module_names:
        return ()
    if module == "torch":  # known, and the list of all modules takes a tenth of a second to make
        return ("torch",)
    return tuple(sorted(set(_modules().get(module, ()))))


@functools.cache
def _modules() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _read(path: Path, package: str, content: bytes, *, users: bool) -> _File:
    imports: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    if path.suffix == ".py":
        with suppress(SyntaxError):  # whoever runs it will say so; here its bytes do
            tree = ast.parse(content)
            nodes = list(ast.walk(tree))  # once: it takes most of the time
            for_types = _for_types(nodes)
            executed = (node for node in nodes if node not in for_types)
            imports = tuple(dict.fromkeys(_imported(executed, package)))
            _remove_docstrings(nodes)
            content = ast.dump(tree).encode()
            constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
            strings = (text for text in constants if isinstance(text, str) and 0 < len(text) < 200)
            texts = tuple(dict.fromkeys(strings)) if users else ()
    return _File(hashlib.sha256(content).hexdigest(), imports, texts)


def _remove_docstrings(nodes: Iterable[ast.AST]) -> None:
    for node in nodes:
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                node.body = node.body[ast.get_docstring(node, clean=False) is not None :]


def _for_types(nodes: Iterable[ast.AST]) -> set[ast.AST]:
    """What stands below `if TYPE_CHECKING:`, which no run executes."""
    found: set[ast.AST] = set()
    for node in nodes:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"), body=body):
                found.update(inner for statement in body for inner in ast.walk(statement))
    return found


def _imported(nodes: Iterable[ast.AST], package: str) -> Iterator[str]:
    parts = [] if package == "." else package.split("/")
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = parts[: len(parts) - node.level + 1]
                base = ".".join([*above, *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == _IMPORTS_PACKAGE:
            names = (given.value for given in node.args if isinstance(given, ast.Constant))
            yield from (f"{name}.*" for name in names if isinstance(name, str))


def _named_settings(file: _File, beside: Path, root: Path, without: Collection[Path]) -> list[Path]:
    """The settings that a file of the user's names, relative to its folder or to `root`."""
    paths: set[Path] = set()
    for path in {folder / text for text in file.texts for folder in (beside, root)}:
        if os.path.isfile(path):  # noqa: PTH113  False for any text, also one that is no name
            paths.add(path)
        elif os.path.isdir(path) and path.resolve() not in (root.resolve(), *root.resolve().parents):  # noqa: PTH112
            paths.update(files_below(path, without) or ())
    return [path for path in paths if path.suffix in SETTINGS and not _excluded(path, without)]


def _excluded(path: Path, without: Collection[Path]) -> bool:
    return any(path.is_relative_to(other) for other in without)


@functools.cache
def _package_files(package: Path, name: str) -> dict[str, Path]:
    """`_module_files` of our own package, by place; one process plans once, and many modules ask for most names."""
    ours = name.split(".", maxsplit=1)[0] == package.name
    return {p.relative_to(package).as_posix(): p for p in _module_files(package.parent, name)} if ours else {}


def _data_beside(folder: Path) -> list[Path]:
    """Templates and sources of other languages, which count with any module of their package."""
    return [file for file in files_below(folder) or () if file.suffix != ".py"]


def _module_files(root: Path, name: str) -> list[Path]:
    """The files below `root` that importing the dotted name executes: its packages' and its module's own.

    Trailing parts that are no module (a class, a function) are left out.
    """
    parts = name.split(".")
    if parts[-1] == "*" and len(parts) > 1:
        return sorted(root.joinpath(*parts[:-1]).rglob("*.py"))
    files: list[Path] = []
    folder = root
    for part in parts:
        package, module = folder / part / "__init__.py", folder / f"{part}.py"
        if package.is_file():
            files.append(package)
        elif module.is_file():
            files.append(module)
            break
        elif not part or not (folder / part).is_dir():
            break
        folder = folder / part
    return files


def files_below(folder: Path, without: Collection[Path] = ()) -> list[Path] | None:
    """The files below a folder that can be code, in a fixed order; None where so many are no code but data."""
    files: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [
            n for n in folders if n not in _SKIPPED and n[0] != "." and not _excluded(Path(parent, n), without)
        ]
        files += [Path(parent, name) for name in names if name not in _SKIPPED and name[0] != "."]
        if len(files) > _MOST_FILES:
            return None
    return sorted(path for path in files if path.is_file() and not _excluded(path, without))
