"""The arguments that a class or function takes by name, told from source files alone: nothing is imported.

Definitions are followed through plain imports, and a class without an `__init__` through its bases. Whatever source
does not say for sure (decorators, metaclasses, names bound twice or under a condition, `**kwargs`) is not known.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from steptrace.config.lookup import find_module

#: Longest chain of imports and bases that is followed; a longer one may well be a circle.
_DEEPEST = 30
#: Takes any argument by its signature, and refuses all of them when called.
_MODULE_CLASS = ("torch.nn.modules.module", "Module")
#: Decorators that leave a class as callable as it was.
_HARMLESS = ("final", "runtime_checkable", "total_ordering")
#: Bases that have no say in what a class takes, by name: some of them are compiled.
_MAKE_NOTHING = ("object", "Generic", "ABC")

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class _Unknown(Exception):  # noqa: N818 - no error: an answer
    """The source does not say."""


@dataclass(frozen=True)
class _Module:
    """A module's syntax tree and where it was found."""

    name: str
    package: str
    path: Path
    tree: ast.Module
    folders: tuple[Path, ...]


@dataclass(frozen=True)
class _Found:
    """What a name stands for: a definition in a module, or without one the module itself."""

    module: _Module
    node: _Definition | None = None


def parameters_of(target: str, folders: Sequence[Path]) -> frozenset[str] | None:
    """Return the names of the arguments that `target` takes by keyword; None where that cannot be told.

    Args:
        target: dotted name of a class or function.
        folders: searched before the installed packages, as in `python_path`.
    """
    owner, _, name = target.rpartition(".")
    try:
        found = _resolve(_module(owner, tuple(folders)), name, 0)
        return None if found is None else _parameters(found, 0)
    except _Unknown:
        return None


def _module(name: str, folders: tuple[Path, ...]) -> _Module:
    spec, depth = find_module(name.split("."), folders)
    if spec is None or depth != len(name.split(".")) or not (spec.origin or "").endswith(".py"):
        raise _Unknown
    path = Path(str(spec.origin))
    package = name if spec.submodule_search_locations else name.rpartition(".")[0]
    return _Module(name, package, path, _tree(path, path.stat().st_mtime_ns), folders)


@cache
def _tree(path: Path, mtime_ns: int) -> ast.Module:  # noqa: ARG001 - part of the cache's key
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise _Unknown from error


def _resolve(module: _Module, name: str, depth: int) -> _Found | None:
    """What `name` stands for in a module, None if nothing gives it."""
    if depth > _DEEPEST:
        raise _Unknown
    bound = list(_binders(module.tree.body, name))
    if not bound:
        return _by_star(module, name, depth)
    if len(bound) > 1 or re.search(rb"(?m)^\s*global\s[^#\n]*\b%b\b" % name.encode(), module.path.read_bytes()):
        raise _Unknown
    match bound[0]:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() as node:
            return _Found(module, node)
        case ast.Import(names=names):
            alias = next(alias for alias in names if name in (alias.asname, alias.name.partition(".")[0]))
            return _Found(_module(alias.name if alias.asname else name, module.folders))
        case ast.ImportFrom(names=names) as node:
            alias = next(alias for alias in names if name == (alias.asname or alias.name))
            return _member(_module(_origin(module, node), module.folders), alias.name, depth)
        case _:
            raise _Unknown


def _member(module: _Module, name: str, depth: int) -> _Found:
    """What `from module import name` gives: what the module gives that name to, else its submodule."""
    if module.package == module.name and not list(_binders(module.tree.body, name)):
        try:
            return _Found(_module(f"{module.name}.{name}", module.folders))
        except _Unknown:
            pass
    found = _resolve(module, name, depth + 1)
    if found is None:
        raise _Unknown
    return found


def _by_star(module: _Module, name: str, depth: int) -> _Found | None:
    """A name that comes by `from other import *`; not known if it may come from two."""
    found = []
    for node in module.tree.body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and not name.startswith("_"):
            given = _resolve(_module(_origin(module, node), module.folders), name, depth + 1)
            found += [] if given is None else [given]
    if len(found) > 1:
        raise _Unknown
    return found[0] if found else None


def _origin(module: _Module, node: ast.ImportFrom) -> str:
    """The full name of the module that a `from ... import` reads."""
    if not node.level:
        return node.module or ""
    package = module.package.split(".")
    return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])


def _binders(body: Sequence[ast.stmt], name: str) -> Iterator[ast.stmt]:
    """The statements of `body` that give `name` to something, or change what it stands for."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                gives = statement.name == name
            case ast.Import() | ast.ImportFrom():
                gives = _imports(statement, name)
            case _:
                gives = any(_touches(node, name) for node in ast.walk(statement))
        if gives:
            yield statement


def _imports(node: ast.Import | ast.ImportFrom, name: str) -> bool:
    return any(name == (alias.asname or alias.name.partition(".")[0]) for alias in node.names)


def _touches(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Name(ctx=ast.Store() | ast.Del()):
            return node.id == name
        case ast.Attribute(value=ast.Name(id=owner), attr=attribute, ctx=ast.Store() | ast.Del()):
            return owner == name and attribute != "__doc__"
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name == name
        case ast.Import() | ast.ImportFrom():
            return _imports(node, name)
        case _:
            return False


def _expression(module: _Module, node: ast.expr, depth: int) -> _Found:
    """What a dotted expression, such as a base class, stands for."""
    match node:
        case ast.Subscript(value=value):
            return _expression(module, value, depth)
        case ast.Name(id=name):
            found = _resolve(module, name, depth)
        case ast.Attribute(value=value, attr=name):
            owner = _expression(module, value, depth)
            if owner.node is not None:
                raise _Unknown
            found = _member(owner.module, name, depth)
        case _:
            raise _Unknown
    if found is None:
        raise _Unknown
    return found


def _parameters(found: _Found, depth: int) -> frozenset[str]:
    match found.node:
        case ast.FunctionDef(args=arguments, decorator_list=[]):
            return _named(arguments)
        case ast.ClassDef() as node:
            return _of_class(found.module, node, depth) or frozenset()
        case _:
            raise _Unknown


def _named(arguments: ast.arguments, *, method: bool = False) -> frozenset[str]:
    if arguments.kwarg:
        raise _Unknown
    by_position = len(arguments.posonlyargs)
    both = arguments.args[1:] if method and not by_position else arguments.args
    return frozenset(argument.arg for argument in [*both, *arguments.kwonlyargs])


def _of_class(module: _Module, node: ast.ClassDef, depth: int) -> frozenset[str] | None:
    """The arguments of a class; None where nothing but `object` makes its instances, which takes none."""
    if depth > _DEEPEST:
        raise _Unknown
    if (module.name, node.name) == _MODULE_CLASS:
        return frozenset()
    is_dataclass = _is_dataclass(module, node, depth)
    if list(_binders(node.body, "__new__")) or any(not _is_abc(keyword) for keyword in node.keywords):
        raise _Unknown
    match list(_binders(node.body, "__init__")):
        case []:
            pass
        case [ast.FunctionDef(args=arguments, decorator_list=[])]:
            return _named(arguments, method=True)
        case _:
            raise _Unknown
    if is_dataclass:
        return _fields(module, node, depth)
    bases = [_of_base(module, base, depth) for base in node.bases]
    made = [names for names in bases if names is not None]
    if len(made) > 1:
        raise _Unknown  # which of them comes first depends on their own bases
    return made[0] if made else None


def _of_base(module: _Module, base: ast.expr, depth: int) -> frozenset[str] | None:
    if _last_name(base) in _MAKE_NOTHING:
        return None
    found = _expression(module, base, depth + 1)
    if not isinstance(found.node, ast.ClassDef):
        raise _Unknown
    return _of_class(found.module, found.node, depth + 1)


def _last_name(base: ast.expr) -> str:
    """`Generic` of `typing.Generic[T]`."""
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base).rpartition(".")[2]


def _is_abc(keyword: ast.keyword) -> bool:
    return keyword.arg == "metaclass" and ast.unparse(keyword.value).rpartition(".")[2] == "ABCMeta"


def _is_dataclass(module: _Module, node: ast.ClassDef, depth: int) -> bool:
    """Whether a class has its `__init__` made from its fields; not known with decorators that may do anything."""
    made = False
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = ast.unparse(called).rpartition(".")[2]
        if name == "dataclass" and _expression(module, called, depth + 1).module.name == "dataclasses":
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            made = not any(keyword.arg in ("init", None) for keyword in keywords)
        elif name not in _HARMLESS:
            raise _Unknown
    return made


def _fields(module: _Module, node: ast.ClassDef, depth: int) -> frozenset[str]:
    """The fields of a dataclass that its `__init__` takes, those of its bases with them."""
    names: set[str] = set()
    for base in node.bases:
        if _last_name(base) in _MAKE_NOTHING:
            continue
        found = _expression(module, base, depth + 1)
        if not isinstance(found.node, ast.ClassDef):
            raise _Unknown
        if _is_dataclass(found.module, found.node, depth + 1):
            names |= _fields(found.module, found.node, depth + 1)
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=value):
                if re.search(r"\b(ClassVar|KW_ONLY)\b", ast.unparse(kind)):
                    continue
                hidden = isinstance(value, ast.Call) and any(
                    keyword.arg in ("init", None) for keyword in value.keywords
                )
                names = names - {name} if hidden else names | {name}
            case _:
                pass
    return frozenset(names)
