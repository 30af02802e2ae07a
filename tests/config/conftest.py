"""The repository's own configuration, and a copy of it that a test may change."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from steptrace.config.plan import Plan, make_plan
from steptrace.config.settings import Project

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with the repository's config/: it can serve as root and as working directory."""
    folder = tmp_path / "copy"
    shutil.copytree(ROOT / "config", folder / "config")
    return folder


@pytest.fixture
def plan_of(copy: Path) -> Callable[..., Plan]:
    """A function that writes a study `tiny` into the copy and returns the plan with it alone.

    At the scale of a GPU, at which a variant is composed once, not twice.
    """

    def make(study: str, **overrides: object) -> Plan:
        (copy / "config" / "study" / "tiny.yaml").write_text(study)
        plan = make_plan(copy, copy, {"studies": ["tiny"], "scale": "gpu", **overrides})
        plan.write_snapshots()
        return plan

    return make


@pytest.fixture
def project(copy: Path) -> Project:
    return Project(copy, copy)
