"""steptrace: a reproducible lab for training-step performance."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """`steptrace.capture` without an import of its own, and without its cost for whoever does not use it."""
        if name == "capture":
            import importlib

            return importlib.import_module("steptrace.capture")
        raise AttributeError(f"module 'steptrace' has no attribute {name!r}")
