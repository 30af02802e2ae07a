"""`python -m steptrace.config.inspect_targets`: would these calls of `_target_`s work? Told by importing them.

Reads groups of calls as JSON, each group with the folders of its `python_path`, and writes an answer for every call. It
is a process of its own because what it imports may take seconds, print, or end the process.
"""

import importlib
import inspect
import json
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from steptrace.names import near


class Call(NamedTuple):
    """What is called, and with which arguments; `complete` if none is added when it is called."""

    target: str
    names: tuple[str, ...]
    positional: int
    complete: bool
    key: str
    allowed: tuple[str, ...]
    origins: tuple[str, ...]


class Answer(NamedTuple):
    """The file that defines a target; what is wrong with the call and what to do, and the argument that it is about."""

    file: str | None = None
    problem: str | None = None
    next_step: str | None = None
    argument: str | None = None


class _Missing(Exception):  # noqa: N818 - an answer
    """There is no such module, or no such name in one."""


def answer(call: Call) -> Answer:
    """Import the target of a call, and hold its arguments against its signature."""
    what = f"_target_ '{call.target}'"
    try:
        found, owner = _locate(call.target)
    except _Missing as error:
        text, hint = error.args
        return Answer(problem=f"{what}: {text}", next_step=hint)
    except BaseException as error:  # whatever a module does while it is imported, such as sys.exit()
        text = f"{type(error).__name__}: {error}".splitlines()[0] + _raised_at(error)
        return Answer(problem=f"{what} cannot be imported: {text}", next_step="correct it, or install what it needs")
    if not callable(found):
        kind = "a module" if inspect.ismodule(found) else f"of type {type(found).__name__}"
        return Answer(problem=f"{what} is {kind}", next_step="name a class or function")
    origin = str(getattr(found, "__module__", None) or owner)
    module, _, name = call.target.rpartition(".")
    if not f"{owner}.".startswith(call.allowed) or not f"{origin}.".startswith(call.origins):
        return Answer(
            problem=f"{what} is {origin}.{name}, outside the allowed packages",
            next_step=f"if you trust it, add `allow_targets: [{module}]` to config/workflow.yaml",
        )
    wrong = _wrong_arguments(call, found)
    return wrong or Answer(file=getattr(sys.modules.get(origin), "__file__", None))


def _locate(target: str) -> tuple[Any, str]:
    """The object that a dotted name leads to, found as Hydra finds it, and the last module on the way."""
    found: Any = None
    owner = ""
    for name in target.split("."):
        if found is not None and hasattr(found, name):
            found = getattr(found, name)
        else:
            found = _module(found, f"{owner}.{name}" if owner else name)
        if inspect.ismodule(found):
            owner = found.__name__
    return found, owner


def _module(parent: object, full: str) -> ModuleType:
    try:
        if parent is None or inspect.ismodule(parent):
            return importlib.import_module(full)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
    if parent is None:
        raise _Missing(f"there is no module '{full}'", "install it, or list its folder in `python_path`")
    owner, name = getattr(parent, "__name__", full.rpartition(".")[0]), full.rpartition(".")[2]
    names = [each for each in dir(parent) if not each.startswith("_")]
    # What a package defines is rather meant than its modules, and those rather than what it merely imports.
    origins = {each: str(getattr(inspect.getattr_static(parent, each, None), "__module__", "")) for each in names}
    own = [each for each in names if f"{origins[each]}.".startswith(f"{owner}.")]
    modules = [module.name for module in pkgutil.iter_modules(getattr(parent, "__path__", []))]
    hints = [near(name, part) for part in (own, modules, names) if part]
    hint = next((hint for hint in hints if hint.startswith("did you mean")), hints[0] if hints else None)
    raise _Missing(f"there is no '{name}' in {owner}", hint)


def _wrong_arguments(call: Call, found: Any) -> Answer | None:
    try:
        # A decorator that copies the signature of what it wraps may still take other arguments.
        signature = inspect.signature(found, follow_wrapped=False)
    except (TypeError, ValueError):
        return None  # compiled code
    base = getattr(sys.modules.get("torch.nn.modules.module"), "Module", None)
    if base is not None and getattr(found, "__init__", None) is base.__init__:
        signature = inspect.Signature()  # by its own it takes any argument; called with one it refuses it
    taken = [p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in call.names:
        try:
            signature.bind_partial(**{name: None})
        except TypeError:
            text = f"unknown key '{call.key}.{name}': {call.target} takes no argument '{name}'"
            return Answer(None, text, near(name, taken) if taken else "remove it: it takes no argument by name", name)
    bind = signature.bind if call.complete else signature.bind_partial
    try:
        bind(*[None] * call.positional, **dict.fromkeys(call.names))
    except TypeError as error:  # such as: missing a required argument: 'width'
        missing = str(error).rpartition("argument: ")[2].strip("'")
        step = f"add `{missing}:` to its YAML file, or an override `+{call.key}.{missing}=...`"
        if call.key == "optimizer":
            step = "set `_partial_: true`: the training gives it the model's parameters"
        return Answer(None, f"{call.key}: {call.target}: {error}", step if "missing" in str(error) else None)
    return None


def _raised_at(error: BaseException) -> str:
    """The line that an import failed at; a syntax error's message has it already."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    inside = [frame for frame in frames if frame.filename != __file__]
    return f" ({inside[-1].filename}, line {inside[-1].lineno})" if inside else ""


def _answers(folders: Sequence[str], calls: Sequence[Call]) -> list[Answer]:
    """Search the folders first; then forget their modules, since other folders may hold the same names."""
    path, known = list(sys.path), set(sys.modules)
    sys.path[:0] = folders
    importlib.invalidate_caches()
    found = [answer(call) for call in calls]
    sys.path[:] = path
    for name in set(sys.modules) - known:
        file = getattr(sys.modules[name], "__file__", None)
        if file and any(Path(file).is_relative_to(folder) for folder in folders):
            del sys.modules[name]
    return found


def main() -> None:
    """Answer every call of every group."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what modules print while they are imported is no answer
    groups = [(folders, [Call(*map(_tuple, call)) for call in calls]) for folders, calls in json.load(sys.stdin)]
    json.dump([_answers(*group) for group in groups], output)
    output.close()


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


if __name__ == "__main__":
    main()
