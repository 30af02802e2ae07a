"""Dependencies: each has its reason beside it, the locks agree with them and with each other, licences are listed."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DIRECT = [Requirement(text) for text in PROJECT["dependencies"]]


def _locked(name: str) -> dict[str, str]:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith(("#", "-r "))]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[^\s;@]+", line) for line in lines)  # no addresses, no ranges
    pairs = [line.split("==") for line in lines]
    assert len({canonicalize_name(package) for package, _ in pairs}) == len(pairs)
    return {canonicalize_name(package): version for package, version in pairs}


LOCKED = _locked("requirements.lock")
#: Not in the locks: those of torch's CUDA build, as they are made on its CPU build; what an environment begins with.
_LEFT_OUT = ("nvidia-", "cuda-", "triton", "setuptools")
WITH_CHECKS = LOCKED | _locked("requirements-dev.lock")


def test_the_locks_name_no_package_twice() -> None:
    assert not set(LOCKED) & set(_locked("requirements-dev.lock"))


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda requirement: requirement.name)
def test_the_lock_has_a_version_that_pyproject_allows(requirement: Requirement) -> None:
    assert requirement.specifier.contains(LOCKED[canonicalize_name(requirement.name)], prereleases=True)


def test_the_locks_have_all_that_their_packages_require() -> None:
    problems = []
    for package, version in WITH_CHECKS.items():
        try:
            installed = metadata.distribution(package)
        except metadata.PackageNotFoundError:
            continue  # of another machine's environment
        if installed.version.split("+")[0] != version:
            continue  # another version than the lock's is tried here: its requirements are not the lock's
        for text in installed.requires or ():
            wanted = Requirement(text)
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
                continue
            locked = WITH_CHECKS.get(canonicalize_name(wanted.name))
            if locked is None and canonicalize_name(wanted.name).startswith(_LEFT_OUT):
                continue
            if locked is None or not wanted.specifier.contains(locked, prereleases=True):
                problems.append(f"{package} {version} requires {wanted}, the lock has {locked}")
    assert problems == []
