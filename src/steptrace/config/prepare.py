"""The key `prepare` of a study: what has to be made before its variants run, such as compiled operators.

A preparation is a command, the files and packages that it depends on, and the file that it leaves. It runs once, before
the first variant that needs it, and again when something that it depends on has changed or its result is gone.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from steptrace.config.digest import files_below, key_of, versions
from steptrace.config.schema import Text
from steptrace.errors import ConfigError

#: The folder of the results of all preparations.
FOLDER: Final = Path("results", "prepared")
_Variable = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z", title="the name of an environment variable")]


class Preparation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of `prepare`.

    Its texts may hold {out}, the preparation's folder, {steptrace}, the folder of steptrace's files, and {python}, the
    interpreter.
    """

    command: Annotated[list[Text], Meta(min_length=1)]
    result: Text
    inputs: list[Text] = []
    packages: list[Text] = []
    env: dict[_Variable, str] = {}
    gives: dict[_Variable, str] = {}


@dataclass(frozen=True)
class Prepared:
    """A preparation with all names filled in.

    Attributes:
        name: its name in `prepare`.
        command: its command.
        result: the file that it leaves in its folder.
        env: environment variables of the command.
        gives: environment variables that the trainings and checks get.
        key: digest of the command and of everything that it depends on.
    """

    name: str
    command: tuple[str, ...]
    result: str
    env: Mapping[str, str]
    gives: Mapping[str, str]
    key: str

    @property
    def folder(self) -> str:
        """Its folder, relative to the working directory."""
        return str(FOLDER / self.name)

    @property
    def is_there(self) -> bool:
        """Whether its result lies in its folder, from this or an earlier state of what it depends on."""
        return Path(self.folder, self.result).is_file()


def prepared(name: str, preparation: Preparation, *, root: Path, workdir: Path, where: str) -> Prepared:
    """A preparation with its placeholders filled in, and the digest of what it depends on.

    Args:
        name: its name.
        preparation: what the study's file says.
        root: the folder of steptrace's own files.
        workdir: the folder that paths are relative to.
        where: the file, for messages.

    Raises:
        ConfigError: an input is missing or too large, or the result is not inside the folder.
    """
    where = f"{where}, prepare.{name}"
    if Path(preparation.result).is_absolute() or ".." in Path(preparation.result).parts:
        raise ConfigError(f"result: '{preparation.result}' is not inside the folder {{out}}", where=where)
    names = {"{steptrace}": str(root), "{python}": sys.executable, "{out}": str((workdir / FOLDER / name).absolute())}

    def filled(text: str) -> str:
        for placeholder, value in names.items():
            text = text.replace(placeholder, value)
        return text

    content = [json.dumps(msgspec.to_builtins(preparation), sort_keys=True)]
    content += [f"{package}=={version}" for package, version in versions(preparation.packages).items()]
    for text in preparation.inputs:
        content += _digests(text, workdir / filled(text), where)
    return Prepared(
        name=name,
        command=tuple(map(filled, preparation.command)),
        result=preparation.result,
        env={variable: filled(value) for variable, value in preparation.env.items()},
        gives={variable: filled(value) for variable, value in preparation.gives.items()},
        key=key_of(content),
    )


def together(preparations: Iterable[tuple[str, Prepared]]) -> dict[str, Prepared]:
    """The preparations of several studies, by name. Studies that declare the same one share it.

    Raises:
        ConfigError: two studies have one of the same name that differs, or give a variable different values.
    """
    by_name: dict[str, tuple[str, Prepared]] = {}
    variables: dict[str, tuple[str, str]] = {}
    for study, preparation in preparations:
        earlier, same = by_name.setdefault(preparation.name, (study, preparation))
        if same != preparation:
            raise ConfigError(
                f"the studies '{earlier}' and '{study}' prepare '{preparation.name}' in different ways",
                where="prepare",
                next_step="write the same in both, or give one of them another name",
            )
        for variable, value in preparation.gives.items():
            first, other = variables.setdefault(variable, (preparation.name, value))
            if other != value:
                raise ConfigError(
                    f"'{first}' and '{preparation.name}' give the variable {variable} different values",
                    where="prepare",
                    next_step="use another variable for one of them",
                )
    return {name: preparation for name, (_, preparation) in by_name.items()}


def _digests(name: str, path: Path, where: str) -> list[str]:
    """The name and content of each file of an input."""
    if not path.exists():
        raise ConfigError(f"inputs: there is no file or folder '{name}'", where=where, expected=str(path))
    files = [path] if path.is_file() else files_below(path)
    if files is None:
        raise ConfigError(
            f"inputs: '{name}' has too many files to be code",
            where=where,
            next_step="name a folder that holds only what the command reads",
        )
    parts = []
    for file in files:
        parts.append(f"{name}/{os.path.relpath(file, path)}")
        parts.append(hashlib.sha256(file.read_bytes()).hexdigest())
    return parts
