"""Tests on the stand-in CUDA device (see README.md beside this file), skipped where PyTorch has none."""

from pathlib import Path

import pytest
import torch


def _has_stand_in() -> bool:
    return torch.cuda.is_available() and "stand-in" in torch.cuda.get_device_name()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    skip = None if _has_stand_in() else pytest.mark.skip(reason="no stand-in CUDA device: make test-standin")
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.standin)
            if skip is not None:
                item.add_marker(skip)
