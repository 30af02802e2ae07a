"""The extras of an installation: which one brings a package that is missing."""

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
