"""Digests that decide whether a run, a table or a page is up to date, and a cache of what earlier calls have computed.

The digest of code is taken over syntax trees without docstrings: any change of meaning counts, while comments,
formatting and file times do not. It covers only the code that is executed: a module, and everything that it imports
from steptrace or from the user's own folders.
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

from steptrace.errors import ConfigError
from steptrace.files import read_bytes, write_bytes

#: With more entries than this, the cache keeps only those that were asked for now.
_MOST_ENTRIES: Final = 20_000
_PACKAGE = Path(__file__).parents[1]
#: A folder with more files is probably a data or home directory.
_MOST_FILES = 2_000
#: The name of a function that imports all modules of a package: `steptrace.documents.subject.modules_in`.
_IMPORTS_PACKAGE: Final = "modules_in"
#: Version of what the cache keeps of a file: raise it when `_read` returns something else for the same file.
_READING: Final = 2
_SKIPPED: Final = ("__pycache__", "py.typed")
#: Suffixes of files that count if code names them: settings and sources. Files of other kinds may be its output.
SETTINGS: Final = (".py", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".sh", ".cu", ".cuh", ".c", ".cc", ".cpp", ".h")


def key_of(parts: Iterable[str]) -> str:
    """One short digest of several texts."""
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]


class Cache:
    """Plain data kept in files. The key of an entry is a digest of everything that the entry was computed from.

    Args:
        path: the file that `save` writes.
        more: other files to read, such as one that came with the results.
    """

    def __init__(self, path: Path | None, *more: Path) -> None:
        self._path = path
        self._new = False
        self._values: dict[str, Any] = {}
        self._used: set[str] = set()
        for file in (*more, *([path] if path else [])):
            with suppress(OSError, msgspec.DecodeError, RecursionError):  # none yet, or damaged
                self._values |= msgspec.msgpack.decode(read_bytes(file), type=dict[str, Any])

    def get(self, made_of: bytes, make: Callable[[], Any]) -> Any:
        """The value for a key; `make` computes it if the key is new."""
        key = hashlib.sha256(made_of).hexdigest()
        self._used.add(key)
        if key not in self._values:
            self._values[key] = make()
            self._new = True
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
        """Write the entries that were asked for so far to another file, unless it holds them already."""
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


class _Walk:
    """The files that modules and scripts import and name.

    Attributes:
        parts: the digest of each file found so far, by its place.
        imported: the names that modules in `roots` import.
    """

    def __init__(self, scan: Callable[[Path, Path], _File], roots: Sequence[Path], without: Collection[Path]) -> None:
        self.parts: dict[str, str] = {}
        self.imported: set[str] = set()
        self._scan = scan
        self._roots = roots
        self._without = without
        self._names: list[str] = []
        self._packages = {_PACKAGE}

    def count(self, place: str, path: Path, root: Path, *, users: bool = True) -> None:
        """Count a file, and the files that it imports and names.

        Args:
            place: its key in `parts`.
            path: the file.
            root: the folder that its relative imports begin from.
            users: whether it is the user's, and not one of this package's.
        """
        if place in self.parts:
            return
        file = self._scan(path, root)
        self.parts[place] = file.digest
        self._names.extend(file.imports)
        read: list[Path] = []
        if users:
            read += _named_settings(file, path.parent, root, self._without)
            if "importlib" in file.imports and self._roots:  # it may import any module of its folder
                read += [below for below in files_below(root, self._without) or () if below.suffix == ".py"]
        elif path.parent not in self._packages:
            self._packages.add(path.parent)
            read += _data_beside(path.parent)
        self.parts.update({os.path.relpath(name, root): self._scan(name, root).digest for name in read})

    def follow(self, modules: Iterable[str]) -> None:
        """Count these modules, and everything that they and the files counted so far import."""
        self._names += modules
        seen: set[str] = set()
        while self._names:
            name = self._names.pop()
            if name in seen:
                continue
            seen.add(name)
            for place, path in _package_files(_PACKAGE, name).items():
                self.count(place, path, _PACKAGE.parent, users=False)
            for number, root in enumerate(self._roots):
                for path in _module_files(root, name):
                    self.count(f"{number}/{path.relative_to(root).as_posix()}", path, root)
                    self.imported.update(self._scan(path, root).imports)


class Code:
    """Digests of code for one plan, which reads each file once. Parsed files are kept in `cache`."""

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
        walk = _Walk(self._scan, roots, without)
        for number, script in enumerate(scripts):
            walk.count(f"script {number}/{script.name}", script, script.parent)
        walk.follow(modules)
        parts = walk.parts
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
            of_the_user = {name for name in walk.imported if any(_module_files(root, name) for root in roots)}
            dependencies = versions(walk.imported - of_the_user)
            parts.update({f"version of {name}": text for name, text in dependencies.items()})
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
    """Return the installed version of each distribution that dotted names belong to, without steptrace.

    A distribution may have another name than its modules: `PIL` comes from pillow, `sklearn` from scikit-learn. If
    several share a namespace package, such as `google`, it is the one that holds the named part. A module that belongs
    to no distribution is the user's own, and counts by its content.
    """
    installed: dict[str, str] = {}
    named = {tuple(name.split(".")[:2]) for name in targets}
    for module, *part in sorted(path for path in named if path[0] != "steptrace"):
        for distribution in _distributions(module, *part):
            with suppress(importlib.metadata.PackageNotFoundError):
                installed[distribution] = importlib.metadata.version(distribution)
    return installed


@functools.cache
def _distributions(module: str, part: str = "") -> tuple[str, ...]:
    """The distributions that hold a module, by name; of several, those with this part of it, if any has it."""
    if module in sys.stdlib_module_names:
        return ()
    if module == "torch":  # known, and the list of all modules takes a tenth of a second to make
        return ("torch",)
    shared = tuple(sorted(set(_modules().get(module, ()))))
    with_part = tuple(name for name in shared if part and _holds(name, module, part)) if len(shared) > 1 else ()
    return with_part or shared


def _holds(distribution: str, module: str, part: str) -> bool:
    """Whether a distribution lists a file of this part of a package: of a folder, or a module in Python or compiled."""
    files = importlib.metadata.files(distribution) or ()
    return any(
        len(file.parts) > 1 and file.parts[0] == module and file.parts[1].split(".")[0] == part for file in files
    )


@functools.cache
def _modules() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _read(path: Path, package: str, content: bytes, *, users: bool) -> _File:
    imports: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    if path.suffix == ".py":
        with suppress(SyntaxError):  # running it will raise the error; its bytes are counted in any case
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
    """The nodes below `if TYPE_CHECKING:`, which no run executes."""
    inner_nodes: set[ast.AST] = set()
    for node in nodes:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"), body=body):
                inner_nodes.update(inner for statement in body for inner in ast.walk(statement))
    return inner_nodes


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
            names = (argument.value for argument in node.args if isinstance(argument, ast.Constant))
            yield from (f"{name}.*" for name in names if isinstance(name, str))


def _named_settings(file: _File, beside: Path, root: Path, without: Collection[Path]) -> list[Path]:
    """The settings files that one of the user's files names, relative to its folder or to `root`."""
    paths: set[Path] = set()
    for path in {folder / text for text in file.texts for folder in (beside, root)}:
        if os.path.isfile(path):  # noqa: PTH113  False for any text, also for one that cannot be a file's name
            paths.add(path)
        elif os.path.isdir(path) and path.resolve() not in (root.resolve(), *root.resolve().parents):  # noqa: PTH112
            paths.update(files_below(path, without) or ())
    return [path for path in paths if path.suffix in SETTINGS and not _excluded(path, without)]


def _excluded(path: Path, without: Collection[Path]) -> bool:
    return any(path.is_relative_to(other) for other in without)


@functools.cache
def _package_files(package: Path, name: str) -> dict[str, Path]:
    """The result of `_module_files` for our own package, by place. It is cached: most modules ask for the same."""
    if name.split(".", maxsplit=1)[0] != package.name:
        return {}
    return {path.relative_to(package).as_posix(): path for path in _module_files(package.parent, name)}


def _data_beside(folder: Path) -> list[Path]:
    """The templates, data and sources of other languages in a folder; they count with any module of their package."""
    return [file for file in files_below(folder) or () if file.suffix != ".py"]


def _module_files(root: Path, name: str) -> list[Path]:
    """The files below `root` that an import of the dotted name executes: those of its packages and of its module.

    Trailing parts that name a class or function are ignored.
    """
    parts = name.split(".")
    if parts[-1] == "*" and len(parts) > 1:
        return sorted(root.joinpath(*parts[:-1]).rglob("*.py"))
    files: list[Path] = []
    folder = root
    for part in parts:
        package = folder / part / "__init__.py"
        module = folder / f"{part}.py"
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
    """The files below a folder that can be code, in a fixed order; None if there are so many that they must be data."""
    files: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [
            n for n in folders if n not in _SKIPPED and n[0] != "." and not _excluded(Path(parent, n), without)
        ]
        files += [Path(parent, name) for name in names if name not in _SKIPPED and name[0] != "."]
        if len(files) > _MOST_FILES:
            return None
    return sorted(path for path in files if path.is_file() and not _excluded(path, without))
