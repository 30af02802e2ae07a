"""The files of the configuration's groups, checked before Hydra composes them: limits, and what includes what.

Hydra follows a `defaults` list that leads back to itself until the stack is full, and one that includes two files at
each of many levels until the memory is.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from steptrace.config.yaml_file import MOST_COMPOSED, line_of, read_yaml
from steptrace.errors import ConfigError

#: Files that one file may include, directly and by others, each time counted.
_MOST_INCLUDED: Final = 1_000
#: What may stand before the name of a group in a `defaults` list.
_KEYWORDS: Final = ("optional ", "override ")


def group_files(folders: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Each YAML file that Hydra may compose, with the folder it is found in; studies and settings are not composed."""
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
        if name not in files:
            files[name] = path
            included[name] = tuple(_included(name, content))
    counts: dict[str, int] = {}
    for name in files:
        _count(name, files, included, counts, ())


def _count(
    name: str,
    files: Mapping[str, Path],
    included: Mapping[str, tuple[str, ...]],
    counts: dict[str, int],
    above: tuple[str, ...],
) -> int:
    """How many files a file includes, itself counted."""
    if name in above:
        cycle = " -> ".join([*above[above.index(name) :], name])
        line = line_of(files[above[-1]], ["defaults"])
        raise ConfigError(
            f"a file of a group includes itself: {cycle}",
            where=f"{files[above[-1]]}, line {line}" if line else files[above[-1]],
            next_step="remove one of these entries from its `defaults`",
        )
    if name not in files:
        return 0  # Hydra says that there is no such file, where it is needed
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
    entries = content.get("defaults")
    group = name.rpartition("/")[0]
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, str) and entry != "_self_":
            yield _path(group, "", entry)
        elif isinstance(entry, dict):
            for key, options in entry.items():
                for option in options if isinstance(options, list) else [options]:
                    if isinstance(key, str) and isinstance(option, str):
                        yield _path(group, key, option)


def _path(group: str, key: str, option: str) -> str:
    """Where an entry `key: option`, or `option` alone, of a file in `group` leads to."""
    for keyword in _KEYWORDS:
        key, option = key.removeprefix(keyword), option.removeprefix(keyword)
    key, option = key.partition("@")[0], option.partition("@")[0].removesuffix(".yaml")
    whole = f"{key}/{option}" if key else option
    return whole.lstrip("/") if whole.startswith("/") or not group else f"{group}/{whole}"
