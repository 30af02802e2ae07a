"""A study whose variants are commands: the key `program` of config/study/NAME.yaml, resolved for one variant.

A variant adds arguments or environment variables, or has a folder of its own, such as a git worktree. The configuration
holds digests of the code that the program executes, of the settings that it names, and of the packages beside its
interpreter, so that the variant runs again when one of them changes.
"""

import hashlib
import itertools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from steptrace.config.digest import SETTINGS, Code
from steptrace.config.schema import Processes, Text
from steptrace.errors import ConfigError, meant

#: Files and folders of the workflow itself. The programs of a study may lie in the same folder.
_OURS: Final = ("results", "reports", ".snakemake", "config/study", "config/workflow.yaml")
#: Steps under the profiler before those that are recorded (`steptrace.engine.recording.RecordingSettings`).
_UNDER_PROFILER: Final = 2

#: The suffixes of the scripts that interpreters and launchers run.
_SCRIPTS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("python", "torchrun", "accelerate", "deepspeed", "ipython", "pypy"), (".py",)),
    **dict.fromkeys(("bash", "sh", "zsh"), (".sh",)),
}

Steps = Annotated[int, Meta(ge=1, le=10**9)]
Environment = dict[str, str | bool | int | float]


class StudyProgram(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The key `program` of a study: a program that trains, measured as it is."""

    command: Text | Annotated[list[str | int | float], Meta(min_length=1)]
    cwd: Text = "."
    env: Environment = {}
    ranks: Processes = 1
    seed: Annotated[int, Meta(ge=0, le=10**9)] = 0
    warmup: Steps = 10
    steps: Annotated[int, Meta(ge=2, le=10**9)] = 30
    at_most_s: Annotated[float, Meta(gt=0, le=10**9)] = 20.0
    profile: Annotated[int, Meta(ge=0, le=10**9)] = 3
    predicted_steps: Steps | None = None
    compared_steps: Steps = 3


class ProgramVariant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of a study of commands."""

    arguments: list[str] = []
    env: Environment = {}
    cwd: Text | None = None
    hypothesis: str | None = None
    scales: Annotated[list[Text], Meta(min_length=1)] | None = None
    needs: list[Text] = []

    def in_words(self) -> tuple[str, ...]:
        """Its changes of the baseline, as pages name them."""
        folder = [f"cwd={self.cwd}"] if self.cwd else []
        return (*folder, *(f"{name}={value}" for name, value in self.env.items()), *self.arguments)


def filled(
    program: StudyProgram, variant: ProgramVariant, shared: Sequence[str], values: Mapping[str, str], where: str
) -> StudyProgram:
    """The program with a variant's folder, arguments and variables, and each `{key}` replaced by the matrix's value.

    Args:
        program: what all variants share.
        variant: the variant's own part.
        shared: arguments of the study and the scale.
        values: one combination of the matrix.
        where: the file and variant, for messages.

    Raises:
        ConfigError: the command does not contain a key of the matrix.
    """
    command = [*words(program.command), *shared, *variant.arguments]
    environment = {name: str(value) for name, value in {**program.env, **variant.env}.items()}
    cwd = variant.cwd or program.cwd
    for key, value in values.items():
        if f"{{{key}}}" not in " ".join([cwd, *command, *environment.values()]):
            step = f"write {{{key}}} where its value goes, such as --{key}={{{key}}}"
            raise ConfigError(f"the command does not use the matrix's '{key}'", where=where, next_step=step)
        # `{seed}` and other braces stay as they are.
        cwd = cwd.replace(f"{{{key}}}", value)
        command = [word.replace(f"{{{key}}}", value) for word in command]
        environment = {name: text.replace(f"{{{key}}}", value) for name, text in environment.items()}
    return msgspec.structs.replace(program, command=command, env=environment, cwd=cwd)


def compose_program(program: StudyProgram, code: Code, *, scale: str, workdir: Path, where: str) -> dict[str, Any]:
    """The configuration of one variant of a study of commands.

    Args:
        program: the variant's program, as `filled` returns it.
        code: digests of code.
        scale: its name.
        workdir: what the study's paths are relative to.
        where: the file and variant, for messages.

    Raises:
        ConfigError: the folder, or the script, does not exist.
    """
    command, environment = words(program.command), {name: str(value) for name, value in program.env.items()}
    cwd = workdir / program.cwd
    if not cwd.is_dir():
        raise ConfigError(f"the folder {cwd} does not exist", where=where, next_step="correct `cwd`")
    _check_there(command, cwd, environment.get("PYTHONPATH", ""), where)
    return {
        "program": {
            "command": command,
            "env": environment,
            "cwd": program.cwd,
            "files": _code_of(code, command, cwd.resolve(), environment.get("PYTHONPATH", ""), workdir.resolve()),
            "packages": _packages(command[0]),
        },
        "seed": program.seed,
        "device": "cuda" if scale == "gpu" else "cpu",
        # The same keys as in the configurations of our own trainings.
        "scale": {
            "name": scale,
            "warmup_steps": program.warmup,
            "timed_steps": program.steps,
            "at_most_s": program.at_most_s,
        },
        "profile": {"warmup": _UNDER_PROFILER, "active": program.profile},
        "followed": {"predicted_steps": program.predicted_steps, "compared_steps": program.compared_steps},
        "distributed": {"world_size": program.ranks},
    }


def _check_there(command: Sequence[str], cwd: Path, python_path: str, where: str) -> None:
    """Check that the script or module of a command exists: otherwise every training would fail.

    The script is the first word with a script's suffix behind an interpreter or launcher. Other programs may create
    their files themselves.

    Raises:
        ConfigError: there is no such script or module.
    """
    endings = _SCRIPTS.get(re.sub(r"[\d.]+$", "", Path(command[0]).name), ())
    script = next((word for word in command[1:] if word.endswith(endings) and not word.startswith("-")), None)
    if script is not None and "{seed}" not in script and not os.path.isfile(cwd / script):  # noqa: PTH113  of any text
        near_by = [path.relative_to(cwd).as_posix() for path in sorted(cwd.glob(f"*{Path(script).suffix}"))]
        raise ConfigError(
            f"there is no script '{script}' in {cwd}",
            where=where,
            next_step=meant(script, near_by) or "correct `command` or `cwd`",
        )
    if command[1:2] == ["-m"] and len(command) > 2 and script is None and endings:
        top = command[2].partition(".")[0]
        folders = [cwd, cwd / "src", *_folders(python_path, cwd)]
        installed = _installed(command[0])
        if installed is None or top in sys.stdlib_module_names:
            return
        if not any((folder / top).is_dir() or (folder / f"{top}.py").is_file() for folder in [*folders, *installed]):
            raise ConfigError(
                f"there is no module '{top}' in {cwd} or beside {command[0]}",
                where=where,
                next_step="correct `command` or `cwd`",
            )


def _installed(executable: str) -> list[Path] | None:
    """The folders of packages beside an interpreter; None if it may find packages elsewhere, too."""
    path = shutil.which(executable)
    folders = [] if path is None else sorted(Path(path).parent.parent.glob("lib/python3*/site-packages"))
    return None if not folders or any(map(_leads_elsewhere, folders)) else folders


def _leads_elsewhere(folder: Path) -> bool:
    """Whether a folder of installed packages refers to other folders, as an editable installation does."""
    for file in folder.glob("*.pth"):
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        if file.name.startswith("__editable__") or any(line and not line.startswith(("import", "#")) for line in lines):
            return True
    return False


def words(command: str | Sequence[str | int | float]) -> list[str]:
    """The words of a command, given as text or as a list."""
    return shlex.split(command) if isinstance(command, str) else [str(word) for word in command]


def _code_of(code: Code, command: Sequence[str], cwd: Path, python_path: str, workdir: Path) -> str:
    """The digest of the code that a command executes in `cwd`, and of the settings that it names.

    The imports of the command's Python scripts (`train.py`) and modules (`-m package.train`) are followed. Without a
    script or module everything below `cwd` counts, except what the workflow in `workdir` writes.
    """
    without = [workdir / name for name in _OURS]
    names = [*command, *(word.partition("=")[2] for word in command)]
    files = [cwd / name for name in names if os.path.isfile(cwd / name)]  # noqa: PTH113  False for any text
    scripts = [file for file in files if file.suffix == ".py"]
    roots = [file.parent for file in scripts]
    roots += [folder for folder in (cwd, cwd / "src", *_folders(python_path, cwd)) if folder.is_dir()]
    modules = [name for flag, name in itertools.pairwise(command) if flag == "-m"]
    if not scripts and not any((root / f"{name.replace('.', '/')}.py").exists() for name in modules for root in roots):
        return code.digest(folders=[cwd], without=without)
    settings = [file for file in files if file.suffix in (*SETTINGS, ".json")]
    return code.digest(modules, scripts=[*scripts, *settings], roots=list(dict.fromkeys(roots)), without=without)


def _folders(python_path: str, cwd: Path) -> Iterable[Path]:
    return (cwd / folder for folder in python_path.split(os.pathsep) if folder)


@cache
def _packages(executable: str) -> str | None:
    """The digest of the packages beside an interpreter or console script; None if there are none."""
    path = shutil.which(executable)
    if path is None:
        return None
    folders = sorted(Path(path).parent.parent.glob("lib/python3*/site-packages"))
    names = sorted(entry.name for folder in folders for entry in folder.glob("*.dist-info"))
    return hashlib.sha256("\n".join(names).encode()).hexdigest() if names else None
