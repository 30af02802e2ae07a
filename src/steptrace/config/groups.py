"""The files of the configuration's groups, checked before Hydra composes them: limits, and what includes what.

Hydra follows a `defaults` list that leads back to itself until the stack is full, and one that includes two files at
each of many levels until the memory is.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from steptrace.config.yaml_file import MOST_COMPOSED, has_key, line_of, read_limited, read_yaml
from steptrace.errors import ConfigError

#: Files that one file may include, directly and by others, each time counted.
_MOST_INCLUDED: Final = 1_000
#: Keywords that may precede the name of a group in a `defaults` list.
_KEYWORDS: Final = ("optional ", "override ")
#: The file that Hydra begins with, without its suffix.
_ROOT: Final = "config"
#: The line at the beginning of a file that says where its content belongs in the configuration.
_PACKAGE: Final = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
#: Bytes of a file that are searched for that line.
_HEADER: Final = 1_000
#: Characters of a text that a message shows.
_SHOWN: Final = 60


def group_files(folders: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Each YAML file that Hydra may compose, with its configuration folder; studies and workflow.yaml are left out."""
    return [
        (path, folder)
        for folder in folders
        for path in sorted(folder.rglob("*.yaml"))
        if path.parent != folder / "study" and path != folder / "workflow.yaml"
    ]


def check_groups(folders: Sequence[Path]) -> None:
    """Check the files of all groups.

    Args:
        folders: the configuration folders; a file in an earlier one replaces one of the same name.

    Raises:
        ConfigError: a file is not YAML or beyond the limits, or `defaults` lists lead back to where they began.
    """
    states = []
    for path, folder in group_files(folders):
        try:
            state = path.stat()
        except OSError as error:
            raise ConfigError(f"cannot be read ({error.strerror})", where=path) from error
        states.append((path, path.relative_to(folder).with_suffix("").as_posix(), state.st_mtime_ns, state.st_size))
    _check(tuple(states))


@lru_cache(maxsize=8)
def _check(states: tuple[tuple[Path, str, int, int], ...]) -> None:
    """One plan composes many variants of the same files: they are read once."""
    files: dict[str, Path] = {}
    included: dict[str, tuple[str, ...]] = {}
    for path, name, _, _ in states:
        content = read_yaml(path, most_values=MOST_COMPOSED)
        _check_defaults(path, content)
        _check_interpolations(path, content, ())
        if name not in files:
            files[name] = path
            included[name] = tuple(_included(name, content))
        if name == _ROOT and "defaults" in content and len(content) > 1 and "_self_" not in _entries(content):
            sys.stderr.write(
                f"{path}: warning: its `defaults` have no `_self_`, so the values of this file go before those of all "
                "groups, such as `scale`\n  next: add `- _self_` to `defaults` where this file's own values belong\n"
            )
    counts: dict[str, int] = {}
    for name in files:
        _count(name, files, included, counts, ())


def _check_defaults(path: Path, content: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless `defaults` is a list of files and of choices from groups."""
    entries = content.get("defaults", [])
    before: list[Any] = []
    wrong: list[list[Any]] = [] if isinstance(entries, list) else [["defaults"]]
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        options = [*entry.values()] if isinstance(entry, dict) else []
        lists = [option if isinstance(option, list) else [option] for option in options]
        is_choice = len(lists) == 1 and all(option is None or isinstance(option, str) for option in lists[0])
        texts = [*entry, *lists[0]] if is_choice else [entry]
        if (not isinstance(entry, str) and not is_choice) or any("\0" in str(text) for text in texts):
            wrong.append(["defaults", number])
        group = next(iter(entry)) if is_choice and isinstance(entry, dict) else entry
        if group in before:
            raise ConfigError(
                f"'{group}' stands twice in `defaults`",
                where=f"{path}, line {line_of(path, ['defaults', number])}",
                next_step="remove one of the two",
            )
        before.append(group)
    for keys in wrong[:1]:
        raise ConfigError(
            f"{'.'.join(map(str, keys))} is not a choice of a file",
            where=f"{path}, line {line_of(path, keys)}",
            expected="a list of `- group: option` and `- file`",
        )


def with_line(path: Path, included: str) -> str:
    """A file, with the line in which its `defaults` name another file, if they do."""
    group = ""  # a file that Hydra cannot find is named from the configuration's folder
    for number, entry in enumerate(_entries(read_yaml(path))):
        if included in _included(group, {"defaults": [entry]}):
            return f"{path}, line {line_of(path, ['defaults', number])}"
    return str(path)


def _check_interpolations(path: Path, value: Any, keys: tuple[Any, ...]) -> None:
    """Refuse a text with `${` that OmegaConf cannot read: its own error names no file."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            _check_interpolations(path, part, (*keys, key))
    elif isinstance(value, str) and "${" in value:
        from omegaconf.errors import GrammarParseError
        from omegaconf.grammar_parser import parse

        try:
            parse(value)
        except GrammarParseError as error:
            raise ConfigError(
                f"'{value[:_SHOWN]}' cannot be read",
                where=f"{path}, line {line_of(path, keys)}",
                expected="${key}, or ${oc.env:NAME} for an environment variable; a plain ${ is written \\${",
            ) from error


def _count(
    name: str,
    files: Mapping[str, Path],
    included: Mapping[str, tuple[str, ...]],
    counts: dict[str, int],
    above: tuple[str, ...],
) -> int:
    """The number of files that a file includes, plus itself."""
    if name in above:
        cycle = " -> ".join([*above[above.index(name) :], name])
        line = line_of(files[above[-1]], ["defaults"])
        raise ConfigError(
            f"a file of a group includes itself: {cycle}",
            where=f"{files[above[-1]]}, line {line}" if line else files[above[-1]],
            next_step="remove one of these entries from its `defaults`",
        )
    if name not in files:
        return 0  # if the file is needed, Hydra says that it does not exist
    if name not in counts:
        if len(above) > _MOST_INCLUDED // 10:
            raise ConfigError("files of groups include each other too deeply", where=files[name])
        counts[name] = 1 + sum(_count(other, files, included, counts, (*above, name)) for other in included[name])
        if counts[name] > _MOST_INCLUDED:
            expected = f"at most {_MOST_INCLUDED} files, included directly or by others"
            raise ConfigError("includes too many files", where=files[name], expected=expected)
    return counts[name]


def _included(name: str, content: Mapping[str, Any]) -> Iterator[str]:
    """The files that a file's `defaults` list names, as paths without suffix from the configuration's folder."""
    group = name.rpartition("/")[0]
    for entry in _entries(content):
        if isinstance(entry, str) and entry != "_self_":
            yield _path(group, "", entry)
        elif isinstance(entry, dict):
            for key, options in entry.items():
                for option in options if isinstance(options, list) else [options]:
                    if isinstance(key, str) and isinstance(option, str):
                        yield _path(group, key, option)


def _entries(content: Mapping[str, Any]) -> list[Any]:
    """A file's `defaults` list; empty without one."""
    entries = content.get("defaults")
    return entries if isinstance(entries, list) else []


def place_of(folders: Sequence[Path], overrides: Sequence[str], keys: Sequence[object]) -> str | None:
    """The file and line in which a value of a composed configuration stands, for a message.

    Args:
        folders: the configuration folders.
        overrides: in Hydra's syntax; those that choose options of groups count.
        keys: the names that lead to the value in the configuration.

    Returns:
        The last file that sets the value. If none does, the file in which a value around it would be set; None if there
        is no such file either.
    """
    chosen = dict(override.lstrip("+~").partition("=")[::2] for override in overrides)
    names = [*map(str, keys)]
    place = None
    around: Path | None = None
    nearest = -1
    for path, package in _composed_files(folders, _ROOT, chosen, ()):
        if names[: len(package)] == [*package]:
            if len(package) > nearest:
                around = path
                nearest = len(package)
            if has_key(path, inner := names[len(package) :]):
                place = f"{path}, line {line_of(path, inner)}" if inner else str(path)
    return place or (str(around) if around else None)


def _composed_files(
    folders: Sequence[Path], name: str, chosen: Mapping[str, str], above: tuple[str, ...]
) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """The files of a composition in the order of their use, each with the keys under which its content is put."""
    path = next((file for folder in folders if (file := folder / f"{name}.yaml").is_file()), None)
    if path is None or name in above:
        return
    content = read_yaml(path, most_values=MOST_COMPOSED)
    group = name.rpartition("/")[0]
    this_file = path, _package(path, group)
    for entry in [*_entries(content), *([] if "_self_" in _entries(content) else ["_self_"])]:
        if entry == "_self_":
            yield this_file
            continue
        for inner in _included(name, {"defaults": [entry]}):
            of_group, _, option = inner.rpartition("/")
            option = chosen.get(of_group, option) if isinstance(entry, dict) else option
            yield from _composed_files(folders, f"{of_group}/{option}" if of_group else option, chosen, (*above, name))


def _package(path: Path, group: str) -> tuple[str, ...]:
    """The keys under which a file's content is put: those of its group, unless its first lines name others."""
    named = _PACKAGE.search(read_limited(path)[:_HEADER].decode(errors="replace"))
    package = group.replace("/", ".") if named is None else named[1].replace("_group_", group.replace("/", "."))
    return tuple(part for part in package.split(".") if part and part != "_global_")


def _path(group: str, key: str, option: str) -> str:
    """The file that an entry `key: option`, or `option` alone, names in a file of `group`."""
    for keyword in _KEYWORDS:
        key = key.removeprefix(keyword)
        option = option.removeprefix(keyword)
    key = key.partition("@")[0]
    option = option.partition("@")[0].removesuffix(".yaml")
    whole = f"{key}/{option}" if key else option
    return whole.lstrip("/") if whole.startswith("/") or not group else f"{group}/{whole}"
