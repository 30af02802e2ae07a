"""Every Python process that `steptrace run` starts imports this, since its folder is first on PYTHONPATH.

It makes steptrace importable in any environment, and puts the probe into the process once PyTorch is imported. In a
process that never imports PyTorch it only reports that the process has started. It needs the standard library only.
"""

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import traceback

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - without the time to import pathlib
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))  # noqa: PTH120


def _tell(event: str, **fields: str) -> None:
    """Append an event for the launcher, as `steptrace.launch.events.append` does; do nothing if the folder is gone."""
    line = json.dumps({"event": event, "pid": os.getpid(), **fields}, ensure_ascii=False)
    try:
        file = os.open(_EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"\n{line}\n".encode(errors="replace"))
        finally:
            os.close(file)
    except OSError:
        pass


def _is_over() -> bool:
    """Whether the launcher has reported that the measurement is over, or is gone with its folder."""
    if not os.path.isdir(_SETTINGS["out"]):  # noqa: PTH112
        return True
    try:
        with open(_EVENTS, "rb") as events:  # noqa: PTH123
            return b'\n{"event": "MeasurementOver"' in events.read()
    except OSError:  # no process has reported anything yet
        return False


class _Steptrace(importlib.abc.MetaPathFinder):
    """Finds the package `steptrace` that this file belongs to, and no other package beside it."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]  # noqa: ARG002
        if name != "steptrace":
            return None
        file = os.path.join(_PACKAGE, "__init__.py")  # noqa: PTH118
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=[_PACKAGE])


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Puts the probe into the process once torch is fully imported.

    A search alone is no import: many libraries call `importlib.util.find_spec("torch")` to see if it is installed.
    """

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "torch":
            return None
        finders = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        if spec is None or spec.loader is None or "exec_module" in getattr(spec.loader, "__dict__", ["exec_module"]):
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            if self in sys.meta_path:  # the program may have changed the list
                sys.meta_path.remove(self)
            vars(spec.loader).pop("exec_module", None)  # the loader is as before
            execute(module)
            _install()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _install() -> None:
    try:
        if sys.version_info < (3, 11):  # noqa: UP036 - the program's interpreter need not be the launcher's
            version = sys.version.split()[0]
            _tell("ProbeFailed", error=f"the program runs Python {version}, and the probe needs 3.11 or later")
            return
        from steptrace.launch.install import install

        install(_SETTINGS)
    except (Exception, SystemExit):  # the program must run, even if it cannot be measured
        _tell("ProbeFailed", error=traceback.format_exc())


def _look_at_error() -> None:
    """If the process ends because its interpreter lacks a module, report the module to the launcher."""
    module = _missing_module(getattr(sys, "last_value", None))
    if module:
        _tell("ModuleMissing", module=module, python=sys.executable)


def _missing_module(error: "BaseException | None") -> "str | None":
    """The module whose lack an error is about. Libraries that import on demand raise an error of their own from it."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            return error.name
        cause = error.__cause__
        if cause is None and not error.__suppress_context__:
            before = error.__context__  # which the error may have nothing to do with
            named = (getattr(before, "name", None) or "") in str(error)
            cause = before if isinstance(before, ImportError) and (isinstance(error, ImportError) or named) else None
        error = cause
    return None


def _look_for_torch() -> None:
    """If the process ends without PyTorch because its interpreter has none, report that to the launcher."""
    try:
        if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
            _tell("TorchMissing", python=sys.executable)
    except (ImportError, ValueError):  # the program has changed how modules are found
        pass


def _run_own() -> None:
    """Run the environment's own sitecustomize, which this one hides."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_SETTINGS = json.loads(os.environ.get("STEPTRACE_LAUNCH") or "{}")
_EVENTS = os.path.join(_SETTINGS.get("out", ""), "events.jsonl")  # noqa: PTH118
if _SETTINGS and not _is_over():
    _tell("Started")
    atexit.register(_look_at_error)
    atexit.register(_look_for_torch)
    sys.meta_path[:0] = [_Steptrace(), _AfterTorch()]
_run_own()
