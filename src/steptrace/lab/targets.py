"""Resolves the `_target_`s of a configuration, and refuses names that lead out of the package that they name.

`torch.utils.data.dataloader.os.system` begins with an allowed prefix, but it is a function of the standard library
that PyTorch's module happens to import. The check of prefixes (`steptrace.config.compose.check_allowed`) reads names
only, since planning imports no PyTorch. This check runs before a training, where the packages are imported anyway.
"""

import importlib
import inspect
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from steptrace.config.compose import ALLOWED, targets
from steptrace.errors import ConfigError

#: The package that PyTorch's compiled functions say they are defined in, if they say any.
_COMPILED: Final = "torch._C"
_EXPECTED: Final = "a class or function that is defined in the package that its name says"


def check_targets(config: Mapping[str, Any], *, where: str | Path) -> None:
    """Check that each `_target_` of a resolved configuration is a class or function of the package that it names.

    Args:
        config: a resolved configuration whose `_target_`s have allowed prefixes. Their modules are imported.
        where: the file, for messages.

    Raises:
        ConfigError: a target does not exist, is neither a class nor a function, or is defined in another package.
    """
    for key, target in targets(config):
        try:
            reason = _fault(str(target))
        except (ImportError, SystemExit) as error:
            why = f"a module ends the process with {error.code!r}" if isinstance(error, SystemExit) else error
            raise ConfigError(
                f"{key} is '{target}', and importing it failed: {why}",
                where=where,
                next_step="install the package, or correct the name or `python_path`",
            ) from error
        if reason:
            raise ConfigError(
                f"{key} is '{target}', {reason}",
                where=where,
                expected=_EXPECTED,
                next_step="name it by the package that defines it",
            )


def _fault(target: str) -> str | None:
    """Return the fault of a target as a clause for a message, or None.

    Raises:
        ImportError: its package cannot be imported.
        SystemExit: a module of it is a program that ends when it is imported.
    """
    if not all(name.isidentifier() for name in target.split(".")):
        return "which is not a dotted name of Python"
    home = _home(target)
    first, *names = target.split(".")
    value: Any = importlib.import_module(first)
    place = first
    for name in names:
        if name.startswith("__"):
            return f"and '{name}' is not a public name"
        if isinstance(value, types.ModuleType):
            value = _member(value, f"{place}.{name}", name)
        elif inspect.isclass(value):
            value = getattr(value, name, None)
        else:
            return f"and '{place}' is neither a module nor a class"
        place = f"{place}.{name}"
        if value is None:
            return f"and there is no '{place}'"
        # On the way to its package a name leads through the packages around it, and then stays inside: PyTorch's
        # modules import others that load files and run code, and compiled functions say too little of their origin.
        around = home if _within(place, home) else first
        if isinstance(value, types.ModuleType) and not _within(value.__name__, around):
            return f"and '{place}' is the module {value.__name__} of another package"
    if not inspect.isclass(value) and not inspect.isroutine(value):
        return f"which is neither a class nor a function, but of type {type(value).__name__}"
    module = _defined_in(value, target)
    if module is None or _within(module, home) or _within(module, _COMPILED):
        return None
    is_operator = module == "torch" and inspect.isbuiltin(value)  # `torch.nn.functional.conv2d`, compiled as well
    return None if is_operator else f"which is defined in {module}"


def _member(module: types.ModuleType, path: str, name: str) -> Any:
    """A module's attribute, or its submodule, imported; None if it has neither."""
    if hasattr(module, name):
        return getattr(module, name)
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name == path or not hasattr(module, "__path__"):
            return None
        raise


def _home(target: str) -> str:
    """The package in which a target has to be defined: the allowed prefix that it begins with, or its first package."""
    for prefix in ALLOWED:
        if target.startswith(prefix):
            return prefix.rstrip(".")
    return target.partition(".")[0]


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _defined_in(value: Any, target: str) -> str | None:
    """The module that defines a class or function; None if a compiled function does not say it.

    A method counts as its class, which may inherit it from another package (`mine.Net.from_config`).
    """
    owner = inspect.unwrap(value) if inspect.isfunction(value) else value
    bound_to = getattr(owner, "__self__", None)
    if inspect.isclass(bound_to):
        owner = bound_to
    module = getattr(owner, "__module__", None)
    if module is None and not target.startswith("torch."):
        return "an unknown module"
    return module
