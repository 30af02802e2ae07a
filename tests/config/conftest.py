"""The repository's own configuration, and a copy of it that a test may change."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from steptrace.config.compose import Composer
from steptrace.config.plan import Plan, make_plan
from steptrace.config.settings import Project

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _forked(forked_programs: None) -> None:
    """What a `_target_` names is imported by a program, which mostly imports PyTorch for it."""


@pytest.fixture(scope="session")
def composed_by_hydra() -> dict[str, Any]:
    """What Hydra has composed, by the overrides and by all that it can read; no errors."""
    return {}


@pytest.fixture(autouse=True)
def _hydra_composes_once(composed_by_hydra: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same groups of the same files, which takes 60 ms, are composed once for all tests."""
    by_hydra = Composer._compose

    def remembered(self: Composer, overrides: Sequence[str], *places: Any) -> Any:
        files = [
            [(path.relative_to(folder), path) for path in sorted(folder.rglob("*.yaml"))] for folder in self._folders
        ]
        texts = [[(name, path.read_bytes()) for name, path in of if name.parts[0] != "study"] for of in files]
        variables = sorted(os.environ.keys() - {"PYTEST_CURRENT_TEST"})
        key = repr((overrides, texts, [(name, os.environ[name]) for name in variables]))
        if key not in composed_by_hydra:
            composed_by_hydra[key] = by_hydra(self, overrides, *places)
        return composed_by_hydra[key]

    monkeypatch.setattr(Composer, "_compose", remembered)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with the repository's config/ and schemas: it can serve as root and as working directory."""
    folder = tmp_path / "copy"
    shutil.copytree(ROOT / "config", folder / "config")
    shutil.copytree(ROOT / "workflow" / "schemas", folder / "workflow" / "schemas")
    return folder


@pytest.fixture
def plan_of(copy: Path) -> Callable[..., Plan]:
    """A function that writes a study `tiny` into the copy and returns the plan with it alone."""

    def make(study: str, **overrides: object) -> Plan:
        (copy / "config" / "study" / "tiny.yaml").write_text(study)
        return make_plan(copy, copy, {"studies": ["tiny"], "scale": "cpu", **overrides})

    return make


@pytest.fixture
def project(copy: Path) -> Project:
    return Project(copy, copy)
