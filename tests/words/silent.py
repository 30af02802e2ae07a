"""Every sentence replaced by "x": what `steptrace.words` makes, and the words of findings."""

import dataclasses
import inspect
import pkgutil
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import pytest

import steptrace.words
from steptrace.findings import RULES
from steptrace.findings.rule import Words

#: What replaces a sentence, by the type that a function of `steptrace.words` returns.
_SILENT: Final[dict[Any, Any]] = {
    str: "x",
    str | None: "x",
    tuple[str, ...]: ("x",),
    list[str]: ["x"],
    tuple[str, str]: ("x", "x"),
}


def modules() -> list[ModuleType]:
    """The modules of `steptrace.words`."""
    names = [module.name for module in pkgutil.iter_modules(steptrace.words.__path__)]
    return [import_module(f"steptrace.words.{name}") for name in names]


def makers() -> dict[str, Any]:
    """The public functions of `steptrace.words` that make sentences, by module and name."""
    return {
        f"{module.__name__}.{name}": function
        for module in modules()
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__
        if not name.startswith("_")
    }


def replacement_of(function: Any) -> Any:
    """A function that returns "x" in the shape that this one returns sentences in; None if it returns other things."""
    silent = _SILENT.get(inspect.signature(function).return_annotation)
    return None if silent is None else lambda *_, **__: silent


def silence(monkeypatch: pytest.MonkeyPatch) -> int:
    """Replace every sentence by "x", wherever its function was imported; returns how many functions were replaced."""
    functions = {function: new for function in makers().values() if (new := replacement_of(function)) is not None}
    ours = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "steptrace"]
    for module in ours:
        for name, value in list(vars(module).items()):
            if inspect.isfunction(value) and value in functions:
                monkeypatch.setattr(module, name, functions[value])
    said = Words("x", ("x",), ("x",), "x")
    silenced = {name: dataclasses.replace(rule, words=lambda _: said) for name, rule in RULES.items()}
    for module in ours:
        if vars(module).get("RULES") is RULES:
            monkeypatch.setattr(module, "RULES", silenced)
    return len(functions)
