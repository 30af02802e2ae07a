"""A study whose variants are commands: what `program:` in config/study/NAME.yaml comes to for one variant.

A variant adds arguments or environment variables, or takes the program's code from another place: a git ref, or the
last commit with a patch. What the program may read of its work tree, and the packages beside its interpreter, are part
of the configuration, so that its digest changes with them.
"""

import hashlib
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import yaml

from steptrace.config.cache import Composed
from steptrace.config.digest import code_digest, config_digest
from steptrace.errors import ConfigError
from steptrace.machine import git

#: What is read of a large repository may take its time.
_git: Final = partial(git, timeout_s=60)
#: How many steps of a program are looked at unless its study says otherwise.
_COUNTS: Final = {"warmup": 10, "steps": 30, "profile": 3, "predicted_steps": 4, "compared_steps": 3}
#: What the workflow writes and reads itself in its folder, where programs of a study may lie, too.
_OURS: Final = ("results", "reports", ".snakemake", "config/study", "config/workflow.yaml")
#: Steps under the profiler before those that are recorded (`steptrace.recording.Settings`).
_UNDER_PROFILER: Final = 2


def compose_program(
    document: Mapping[str, Any],
    entry: Mapping[str, Any],
    values: Mapping[str, Any],
    scale: str,
    *,
    workdir: Path,
    where: str,
) -> Composed:
    """The configuration of one variant of a study of commands.

    Args:
        document: the study's file.
        entry: the variant's own part of it.
        values: one combination of the matrix: what `{key}` in the command stands for.
        scale: whose arguments are added.
        workdir: what the study's paths are relative to.
        where: the file and variant, for messages.

    Raises:
        ConfigError: a folder, ref or patch that is not there.
    """
    program = document["program"]
    command = [*_words(program["command"]), *document.get("overrides", []), *document.get("scales", {}).get(scale, [])]
    command += entry.get("arguments", [])
    cwd = workdir / program.get("cwd", ".")
    if not cwd.is_dir():
        raise ConfigError("there is no such folder", where=where, next_step=f"correct program.cwd ({cwd})")
    ref, patch = entry.get("ref"), entry.get("patch")
    source: dict[str, Any] = {"cwd": program.get("cwd", ".")}
    if ref or patch:
        source["commit"] = _commit(cwd, ref or "HEAD", where)
    else:
        source["files"] = _state(cwd, tuple(_ours_below(cwd, workdir)))
    if patch:
        source |= {"patch": patch, "patch_digest": _of_patch(workdir / patch, where)}
    counts = {key: int(program.get(key, default)) for key, default in _COUNTS.items()}
    texts = {key: str(value) for key, value in values.items()}
    everything = " ".join([*command, *map(str, _environment(program, entry).values())])
    for key in texts:
        if f"{{{key}}}" not in everything:
            step = f"write {{{key}}} where its value goes, such as --{key}={{{key}}}"
            raise ConfigError(f"the matrix's '{key}' is nowhere in the command", where=where, next_step=step)
    config = {
        "program": {
            "command": [_filled(word, texts) for word in command],
            "env": {name: _filled(str(text), texts) for name, text in _environment(program, entry).items()},
            **source,
            "packages": _packages(command[0]),
        },
        "seed": int(program.get("seed", 0)),
        "device": "cuda" if scale == "gpu" else "cpu",
        # As in our own trainings, for whoever asks how long one takes.
        "scale": {"name": scale, "warmup_steps": counts["warmup"], "timed_steps": counts["steps"]},
        "profile": {"warmup": _UNDER_PROFILER, "active": counts["profile"]},
        "followed": {key: counts[key] for key in ("predicted_steps", "compared_steps")},
        "distributed": {"world_size": int(program.get("ranks", 1))},
    }
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)
    return Composed(digest=config_digest(config), text=text, config=config)


def in_words(entry: Mapping[str, Any]) -> list[str]:
    """What a variant changes, as pages name it."""
    environment = [f"{name}={value}" for name, value in entry.get("env", {}).items()]
    places = [f"{key} {entry[key]}" for key in ("ref", "patch") if key in entry]
    return [*places, *environment, *entry.get("arguments", [])]


def _words(command: str | Sequence[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else [str(word) for word in command]


def _environment(program: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    return {**program.get("env", {}), **entry.get("env", {})}


def _filled(text: str, values: Mapping[str, str]) -> str:
    """The text with `{key}` replaced; other braces, and `{seed}`, stay as they are."""
    for key, value in values.items():
        text = text.replace(f"{{{key}}}", value)
    return text


def _commit(cwd: Path, ref: str, where: str) -> str:
    found = _git(cwd, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    if found is None:
        raise ConfigError(
            f"there is no commit '{ref}'", where=where, expected=f"a branch, tag or commit of the repository at {cwd}"
        )
    return found.decode().strip()


def _of_patch(patch: Path, where: str) -> str:
    try:
        return hashlib.sha256(patch.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"the patch cannot be read ({error.strerror})", where=where, expected=str(patch)) from error


def _ours_below(cwd: Path, workdir: Path) -> Iterator[str]:
    """The workflow's own files and folders that lie below a program's folder, by their path there."""
    for name in _OURS:
        path = workdir.resolve() / name
        if path.is_relative_to(cwd.resolve()):
            yield path.relative_to(cwd.resolve()).as_posix()


@cache
def _state(cwd: Path, ours: tuple[str, ...]) -> str:
    """The digest of the files that a program may read of its work tree: in a repository all but those that git ignores.

    `ours`: what is left out, by its path there.
    """
    tree = _git(cwd, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if tree is None:
        return code_digest(folders=[cwd], without=ours)
    below = ["--", ".", *(f":(exclude){name}" for name in ours)]
    total = hashlib.sha256(_git(cwd, "ls-tree", "-r", "HEAD", ".") or b"")
    total.update(_git(cwd, "diff", "HEAD", "--binary", *below) or b"")
    untracked = _git(cwd, "ls-files", "--others", "--exclude-standard", "-z", *below) or b""
    for name in filter(None, untracked.split(b"\0")):
        path = cwd / os.fsdecode(name)
        total.update(name + b"\0")
        if path.is_file():
            total.update(path.read_bytes())
        elif path.is_symlink():  # to a folder, which may hold this one, or to nothing
            total.update(os.fsencode(path.readlink()))
        elif path.is_dir():  # a repository within this one
            total.update(_state(path, ours=()).encode())
    return total.hexdigest()


@cache
def _packages(executable: str) -> str | None:
    """The digest of the versions installed beside an interpreter or console script; None where it is neither."""
    found = shutil.which(executable)
    if found is None:
        return None
    folders = sorted(Path(found).parent.parent.glob("lib/python3*/site-packages"))
    names = sorted(path.name for folder in folders for path in folder.glob("*.dist-info"))
    return hashlib.sha256("\n".join(names).encode()).hexdigest() if names else None
