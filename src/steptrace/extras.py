"""The extras of an installation: which one brings a package that is missing."""

from contextlib import suppress
from importlib.util import find_spec
from typing import Final

#: Modules and packages that an installation without extras lacks, and the extra of pyproject.toml that brings each.
EXTRA_OF_MODULE: Final = {
    "torch": "predict",
    **dict.fromkeys(
        (
            "PIL",
            "hydra",
            "hydra-core",
            "ipykernel",
            "matplotlib",
            "nbconvert",
            "nbformat",
            "omegaconf",
            "scipy",
            "snakemake",
        ),
        "lab",
    ),
}


class _MissingPackageError(ModuleNotFoundError):
    """A package is missing, and the message has the command that installs it."""


def with_extra(error: ModuleNotFoundError) -> str | None:
    """The command that installs what an import lacks; None where no extra brings it."""
    extra = EXTRA_OF_MODULE.get((error.name or "").partition(".")[0])
    return None if extra is None else f"pip install 'steptrace[{extra}]'"


def named(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error with that command in its message, once, if there is one."""
    advice = with_extra(error)
    if advice is None or isinstance(error, _MissingPackageError):
        return error
    return _MissingPackageError(f"{error}: {advice}", name=error.name, path=error.path)


def missing_package(name: str) -> str | None:
    """What to install before a package can be used, in one sentence; None if it is there, or if no extra brings it."""
    with suppress(ModuleNotFoundError):
        if find_spec(name) is not None or name not in EXTRA_OF_MODULE:
            return None
    return f"{name} is not installed here: pip install 'steptrace[{EXTRA_OF_MODULE[name]}]'"
