"""Makes the builders of hand-made inputs importable (`from builders import TraceBuilder`); the stand-in's settings.

Tests that are marked `slow` run only where the marker is asked for.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

# What a computed value reads as on the stand-in CUDA device (tests/standin/README.md); no other device looks at these.
os.environ.setdefault("FAKECUDA_COMPUTED_SIZE", "8")
os.environ.setdefault("FAKECUDA_COMPUTED_BOOL", "1")

for name in ("builders", "documents", "hostile", "idioms", "programs", "simulated"):
    _spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert _spec is not None
    assert _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[name] = _module
    _spec.loader.exec_module(_module)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is slow, unless `-m slow` or the like is given."""
    if "slow" not in config.option.markexpr:
        slow = [item for item in items if item.get_closest_marker("slow")]
        items[:] = [item for item in items if item not in slow]
        config.hook.pytest_deselected(items=slow)
