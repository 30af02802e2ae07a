"""The stand-in device's settings; tests that are marked `slow` run only where the marker is asked for."""

import os

import pytest

# What a computed value reads as on the stand-in CUDA device (tests/standin/README.md); no other device looks at these.
os.environ.setdefault("FAKECUDA_COMPUTED_SIZE", "8")
os.environ.setdefault("FAKECUDA_COMPUTED_BOOL", "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is slow, unless `-m slow` or the like is given."""
    if "slow" not in config.option.markexpr:
        slow = [item for item in items if item.get_closest_marker("slow")]
        items[:] = [item for item in items if item not in slow]
        config.hook.pytest_deselected(items=slow)
