"""A study whose variants are commands: the key `program` of config/study/NAME.yaml, resolved for one variant.

A variant adds arguments or environment variables, or has a folder of its own, such as a git worktree. The configuration
holds digests of the code that the program executes, of the settings that it names, and of the packages beside its
interpreter, so that the variant runs again when one of them changes.
"""

import glob
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
from typing import Annotated, Any, Final, NamedTuple, NoReturn

import msgspec
from msgspec import Meta

from steptrace.config.digest import SETTINGS, Code
from steptrace.config.schema import Processes, Text
from steptrace.errors import ConfigError, meant

#: Files and folders of the workflow itself. The programs of a study may lie in the same folder.
_OURS: Final = ("results", "reports", ".snakemake", "config/study", "config/workflow.yaml")
#: Steps under the profiler before those that are recorded (`steptrace.engine.recording.RecordingSettings`).
_UNDER_PROFILER: Final = 2

_SHELLS: Final = ("bash", "sh", "zsh")
#: The suffixes of the scripts that interpreters and launchers run.
_SCRIPTS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("python", "torchrun", "accelerate", "deepspeed", "ipython", "pypy"), (".py",)),
    **dict.fromkeys(_SHELLS, (".sh",)),
    **dict.fromkeys(("jupyter", "papermill"), (".ipynb",)),
}
#: The interpreters whose first word that is no option is the script, whatever its suffix.
_PYTHON: Final = ("python", "pypy")
#: Options of Python with a value in the next word, unless it follows at once, as in `-Wignore`.
_WITH_VALUE: Final = ("-W", "-X", "--check-hash-based-pycs")
#: The modules that start a script, or with `-m` another module, as the launchers of the same name do.
_LAUNCHERS: Final = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)

Steps = Annotated[int, Meta(ge=1, le=10**9)]
Environment = dict[str, str | bool | int | float]


class EntryPoint(NamedTuple):
    """What a command starts: a script, or a module; both None where its words do not say it."""

    script: str | None = None
    module: str | None = None
    #: Whether Python itself runs it, and not a launcher.
    by_python: bool = False


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


def started_by(command: Sequence[str]) -> EntryPoint:
    """The script or module that the words of a command start.

    Python's own options are known. Those of launchers are not: their script is the first word with a script's suffix,
    their module the word behind `-m`. Programs that are no interpreter may create their files themselves.
    """
    name = re.sub(r"[\d.]+$", "", Path(command[0]).name)
    if name in _SHELLS and any(re.match(r"-[a-z]*c", word) for word in itertools.takewhile(_is_option, command[1:])):
        return EntryPoint()
    if name not in _PYTHON:
        return _launched(command[1:], _SCRIPTS.get(name, ()))
    words = iter(command[1:])
    for word in words:
        option = re.match(r"-[A-Za-z]*?([cm])(.*)", word, re.DOTALL) if not word.startswith("--") else None
        if word == "-":  # it reads the program from its input
            return EntryPoint()
        if word in _WITH_VALUE:
            next(words, None)
        elif word.startswith(("-W", "-X")):
            continue
        elif option is not None:
            module = option[2] or next(words, "")
            if option[1] == "c" or not module:
                return EntryPoint()
            return _launched([*words], (".py",)) if module in _LAUNCHERS else EntryPoint(module=module, by_python=True)
        elif not _is_option(word):
            return EntryPoint(script=word, by_python=True) if word else EntryPoint()
    return EntryPoint()


def _is_option(word: str) -> bool:
    return word.startswith("-")


def _launched(words: Sequence[str], endings: tuple[str, ...]) -> EntryPoint:
    """What a launcher starts, by the words behind its name and the suffixes of its scripts."""
    if not endings:
        return EntryPoint()
    script = next(
        (
            word
            for before, word in itertools.pairwise(("", *words))
            if word.endswith(endings) and not _is_option(word) and not before.startswith("--output")
        ),
        None,
    )
    if script is not None:
        return EntryPoint(script=script)
    behind = (next_word for word, next_word in itertools.pairwise(words) if word in ("-m", "--module"))
    module = next((word for word in behind if re.fullmatch(r"[A-Za-z_][\w.]*", word)), None)
    return EntryPoint(module=module)


def compose_program(program: StudyProgram, code: Code, *, scale: str, workdir: Path, where: str) -> dict[str, Any]:
    """The configuration of one variant of a study of commands.

    Args:
        program: the variant's program, as `filled` returns it.
        code: digests of code.
        scale: its name.
        workdir: the folder to which the study's paths are relative.
        where: the file and variant, for messages.

    Raises:
        ConfigError: the folder, or the script, does not exist.
    """
    command = words(program.command)
    environment = {name: str(value) for name, value in program.env.items()}
    cwd = workdir / program.cwd
    if not cwd.is_dir():
        raise ConfigError(f"the folder {cwd} does not exist", where=where, next_step="correct `cwd`")
    _check_there(command, cwd, environment, where)
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


def _check_there(command: Sequence[str], cwd: Path, environment: Mapping[str, str], where: str) -> None:
    """Check that what a command starts exists: otherwise every training would fail.

    Args:
        command: its words.
        cwd: the folder in which it starts.
        environment: its variables, in addition to those of this process.
        where: the file and variant, for messages.

    Raises:
        ConfigError: there is no such program, script or module.
    """
    while command and Path(command[0]).name == "env" and "=" in "".join(command[1:2]):
        assignments = [*itertools.takewhile(lambda word: "=" in word, command[1:])]
        environment = {**environment, **dict(word.split("=", 1) for word in assignments)}
        command = command[1 + len(assignments) :]
    path = environment.get("PATH", os.environ.get("PATH", ""))
    if not command or "{seed}" in command[0]:
        return
    if shutil.which(cwd / command[0] if os.sep in command[0] else command[0], path=path) is None:
        _refuse_program(command[0], cwd, path, where)
    started = started_by(command)
    if (missing := missing_script(started, cwd)) is not None:
        problem, likely = missing
        raise ConfigError(problem, where=where, next_step=likely or "correct `command` or `cwd`")
    if started.module is not None and "{seed}" not in started.module:
        installed = _installed(shutil.which(command[0], path=path) or command[0])
        folders = [cwd, cwd / "src", *_folders(environment.get("PYTHONPATH", ""), cwd)]
        _check_module(started.module, folders, installed, f"{cwd} or beside {command[0]}", where)


def missing_script(started: EntryPoint, cwd: Path) -> tuple[str, str | None] | None:
    """That a command's script is not in its folder, and which one may be meant; None if it is there or has no name."""
    script = started.script
    if script is None or "{seed}" in script or _is_there(cwd / script, started):
        return None
    suffix = Path(script).suffix or ".py"
    near_by = [file.name for file in sorted(cwd.glob(f"*{suffix}")) if file.is_file()]
    return f"there is no script '{script}' in {cwd}", meant(script, near_by, likeness=0.6)


def _refuse_program(name: str, cwd: Path, path: str, where: str) -> NoReturn:
    """Say why the first word of a command cannot be started."""
    if os.sep in name:
        is_file = (cwd / name).is_file()
        raise ConfigError(
            f"'{name}' in {cwd} may not be executed" if is_file else f"there is no program '{name}' in {cwd}",
            where=where,
            next_step=f"chmod +x {name}, or name its interpreter" if is_file else "correct `command` or `cwd`",
        )
    near_by = [known for known in (*_SCRIPTS, "python3") if shutil.which(known, path=path) is not None]
    raise ConfigError(
        f"there is no program '{name}' on the path",
        where=where,
        expected="a program that a shell would find in PATH",
        next_step=meant(name, near_by, likeness=0.7) or "correct `command`, or activate the program's environment",
    )


def _is_there(path: Path, started: EntryPoint) -> bool:
    """Whether a script exists. Python also runs a folder or archive that has a `__main__.py`."""
    if started.by_python and os.path.isdir(path):  # noqa: PTH112  of any text
        return (path / "__main__.py").is_file()
    return os.path.isfile(path)  # noqa: PTH113  of any text


def _check_module(name: str, own: Sequence[Path], installed: Sequence[Path] | None, places: str, where: str) -> None:
    """Check that `python -m` finds a module, in the program's own folders or among the installed packages.

    Nothing is checked where the interpreter may find packages in other folders, too: `installed` is None.

    Raises:
        ConfigError: it does not.
    """
    top, *inner = name.split(".")
    if top in sys.stdlib_module_names:
        return
    holding = [folder for folder in (*own, *(installed or ())) if _module_at(folder / top)]
    if not holding and installed is not None:
        raise ConfigError(
            f"there is no module '{top}' in {places}", where=where, next_step="correct `command` or `cwd`"
        )
    # An installed package may be assembled from elsewhere, so only a module of one's own is looked into.
    if not holding or holding[0] not in own:
        return
    paths = [folder.joinpath(top, *inner) for folder in holding]
    if not any(_runs_as_module(path) for path in paths):
        near_by = sorted({file.stem for path in paths for file in path.parent.glob("*.py")})
        missing = (
            f"'{name}' in {holding[0]} has no __main__.py" if paths[0].is_dir() else f"there is no module '{name}'"
        )
        raise ConfigError(
            missing, where=where, next_step=meant(paths[0].name, near_by, likeness=0.6) or "correct `command` or `cwd`"
        )


def _module_at(path: Path) -> bool:
    """Whether a path without an ending is that of a module or package."""
    return path.is_dir() or any(path.parent.glob(f"{glob.escape(path.name)}.*"))


def _runs_as_module(path: Path) -> bool:
    """Whether `python -m` could run what is at a path without an ending: a module, or a package with `__main__`."""
    return any(path.parent.glob(f"{glob.escape(path.name)}.*")) or any(path.glob("__main__.*"))


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
