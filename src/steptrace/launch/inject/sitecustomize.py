"""Found first on PYTHONPATH by every Python process that `steptrace run` starts; asks nothing but the standard library.

It makes steptrace importable, in whatever environment, and lets the probe in once PyTorch is imported. A process that
never imports PyTorch only leaves the mark that it was here.
"""

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import traceback

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is not imported for its sake
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))  # noqa: PTH120


def _mark(what: str, text: str = "") -> None:
    """Leave a file for the launcher; a folder that is gone means that nobody asks any longer."""
    try:
        with open(os.path.join(_SETTINGS["out"], f"{what}.{os.getpid()}"), "w", encoding="utf-8") as file:  # noqa: PTH118, PTH123
            file.write(text)
    except OSError:
        pass


class _Steptrace(importlib.abc.MetaPathFinder):
    """Finds the package `steptrace` that this file belongs to, and no other package of its environment."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]  # noqa: ARG002
        if name != "steptrace":
            return None
        file = os.path.join(_PACKAGE, "__init__.py")  # noqa: PTH118
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=[_PACKAGE])


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Lets the probe in once torch is whole, not while it is still importing itself.

    Many libraries ask whether there is a torch, by `importlib.util.find_spec`, before anybody imports it.
    """

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is None or spec.loader is None or "exec_module" in getattr(spec.loader, "__dict__", ["exec_module"]):
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            if self in sys.meta_path:  # the program may have changed the list
                sys.meta_path.remove(self)
            vars(spec.loader).pop("exec_module", None)  # as it was
            execute(module)
            _install()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _install() -> None:
    try:
        if sys.version_info < (3, 11):  # noqa: UP036 - the program's interpreter need not be the launcher's
            _mark("failed", f"the program runs Python {sys.version.split()[0]}, and the probe needs 3.11 or later")
            return
        from steptrace.launch.probe import install

        install(_SETTINGS)
    except (Exception, SystemExit):  # the program must not fail for want of a measurement
        _mark("failed", traceback.format_exc())


def _look_at_error() -> None:
    """Tell the launcher which module the program's interpreter lacks, if that has ended it."""
    error = getattr(sys, "last_value", None)
    if isinstance(error, ModuleNotFoundError) and error.name:
        _mark("lacks", json.dumps({"module": error.name, "python": sys.executable}))


def _run_own() -> None:
    """Run the environment's own sitecustomize, which this one hides."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_SETTINGS = json.loads(os.environ.get("STEPTRACE_LAUNCH") or "{}")
if _SETTINGS and os.path.isdir(_SETTINGS["out"]) and not os.path.exists(os.path.join(_SETTINGS["out"], "over")):  # noqa: PTH110, PTH112, PTH118
    _mark("started")
    atexit.register(_look_at_error)
    sys.meta_path[:0] = [_Steptrace(), _AfterTorch()]
_run_own()
