"""Reads YAML files within limits: no file can take minutes, all of the memory, or the process's stack.

A file is first read as a stream of events, in time linear in its length, and refused there if it is too large, too deep
or would grow too large by its anchors. Only then is it built.
"""

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from steptrace.errors import ConfigError
from steptrace.files import open_file

#: Bytes of a file, levels of nesting, and values in it after its anchors are expanded.
MOST_BYTES: Final = 2 << 20
MOST_DEPTH: Final = 64
MOST_VALUES: Final = 50_000
#: Values of a file that Hydra composes, which takes much longer for each of them.
MOST_COMPOSED: Final = 10_000
#: Characters of a number, and `${` in a text.
MOST_DIGITS: Final = 100
MOST_INTERPOLATIONS: Final = 50
#: Characters of a text that a message shows.
_SHOWN: Final = 60
_NUMBER: Final = re.compile(r"[-+]?\.?[0-9][0-9_.:eE+-]*")
_MERGE: Final = "<<"
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """A safe loader: a scalar that does not have the form of its type is an error with a line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's own signature
        try:
            return super().construct_object(node, deep=deep)
        except yaml.YAMLError:
            raise
        except Exception as error:
            problem = f"'{str(node.value)[:_SHOWN]}' is no {str(node.tag).rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


def read_yaml(path: Path, *, most_values: int = MOST_VALUES) -> dict[str, Any]:
    """Return the mapping that the YAML file `path` holds.

    Args:
        path: the file.
        most_values: how many values it may hold.

    Raises:
        ConfigError: the file is missing, not a regular file, too large or not YAML, holds a key twice, has an anchor
            that includes itself, or is not a mapping.
    """
    document = parse_yaml(read_limited(path), path, most_values=most_values)
    if not isinstance(document, dict | None):
        raise ConfigError("is not a mapping", where=f"{path}, line 1", expected="a mapping `key: value`")
    return document or {}


def read_limited(path: Path) -> bytes:
    """The bytes of a YAML file.

    Raises:
        ConfigError: it cannot be read, is not a regular file, or is larger than `MOST_BYTES`.
    """
    try:
        with open_file(path) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror or error})", where=path) from error
    if len(content) > MOST_BYTES:
        expected = f"at most {MOST_BYTES >> 20} MiB of YAML"
        raise ConfigError("is too large", where=path, expected=expected, next_step="is it a configuration?")
    return content


def parse_yaml(content: bytes, where: object, *, most_values: int = MOST_VALUES) -> Any:
    """Return the value of a YAML text; raises the same errors as `read_yaml`."""
    try:
        _check(content, where, most_values)
        return yaml.load(content, Loader=_Loader)
    except yaml.reader.ReaderError as error:
        line = content.count(b"\n", 0, error.position) + 1
        what = f"is not valid YAML: {error.reason}"
        raise ConfigError(what, where=f"{where}, line {line}", next_step="save it as text in UTF-8") from error
    except yaml.YAMLError as error:
        raise not_yaml(error, where) from error


def not_yaml(error: yaml.YAMLError, where: object) -> ConfigError:
    """Return an error that says in one line what PyYAML refused, and where."""
    mark = getattr(error, "problem_mark", None)
    problem = (
        str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
        .splitlines()[0]
        .removeprefix("did not find ")
    )
    return ConfigError(
        f"is not valid YAML: {problem}",
        where=f"{where}, line {mark.line + 1}" if mark else str(where),
        next_step="quote a text, such as an override, that contains [ { : or @, and indent with spaces",
    )


@dataclass
class _Open:
    """A mapping or sequence that is being read: its anchor, and how many values it has so far."""

    anchor: str | None
    is_mapping: bool
    size: int = 1
    #: For a mapping: whether a key comes next, and the lines of its keys.
    at_key: bool = True
    keys: dict[str, int] = field(default_factory=dict)


def _check(content: bytes, where: object, most_values: int) -> None:
    """Raise `ConfigError` for a text beyond the limits, a duplicate key, or an anchor that includes itself."""
    opened: list[_Open] = []
    sizes: dict[str, int] = {}

    def refuse(what: str, line: int, expected: str | None = None, next_step: str | None = None) -> None:
        raise ConfigError(what, where=f"{where}, line {line}", expected=expected, next_step=next_step)

    def add(size: int, line: int) -> None:
        if opened:
            opened[-1].size += size
            opened[-1].at_key = not opened[-1].at_key
        if sum(part.size for part in opened) > most_values:
            expected = f"at most {most_values} values, where each use of an anchor counts as a copy of it"
            refuse("holds too much", line, expected, "divide it, or remove what is not needed")

    for event in _events(content):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            if any(part.anchor == event.anchor for part in opened):
                refuse(f"the anchor '&{event.anchor}' includes itself", line, next_step=f"remove *{event.anchor}")
            add(sizes.get(event.anchor or "", 1), line)
        elif isinstance(event, yaml.ScalarEvent):
            if opened and opened[-1].is_mapping and opened[-1].at_key:
                keys = opened[-1].keys
                key = event.value
                if key in keys and key != _MERGE:
                    where_else = f"it is in line {keys[key]}, too"
                    refuse(f"duplicate key '{key[:_SHOWN]}'", line, next_step=f"keep one of them: {where_else}")
                keys[key] = line
            if event.implicit[0] and len(event.value) > MOST_DIGITS and _NUMBER.fullmatch(event.value):
                refuse(f"a number of {len(event.value)} characters", line, f"at most {MOST_DIGITS}", "quote a text")
            if event.value.count("${") > MOST_INTERPOLATIONS:
                refuse("too many interpolations in one text", line, f"at most {MOST_INTERPOLATIONS} times ${{")
            if event.anchor:
                sizes[event.anchor] = 1
            add(1, line)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            opened.append(_Open(event.anchor, isinstance(event, yaml.MappingStartEvent)))
            if len(opened) > MOST_DEPTH:
                refuse("is nested too deeply", line, f"at most {MOST_DEPTH} levels")
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            closed = opened.pop()
            if closed.anchor:
                sizes[closed.anchor] = closed.size
            add(closed.size, line)


def _events(content: bytes) -> Iterator[Any]:
    """The parser's events; each has a `start_mark`, although PyYAML's types do not say so."""
    yield from yaml.parse(content, Loader=_Base)


def line_of(path: Path, keys: Sequence[Hashable]) -> int | None:
    """The line of a key in a YAML file; if the key is not there, the line of the innermost key around it, or None.

    Args:
        path: the file; it is read again, since only messages need a line.
        keys: names of mappings and positions in sequences, from the outermost.
    """
    try:
        lines = _lines(read_limited(path))
    except (ConfigError, yaml.YAMLError):
        return None
    names = tuple(map(str, keys))
    return next((lines[names[:count]] for count in range(len(names), 0, -1) if names[:count] in lines), None)


def has_key(path: Path, keys: Sequence[Hashable]) -> bool:
    """Whether a YAML file holds this very key, not only a key around it; True for no keys, the whole file."""
    try:
        return not keys or tuple(map(str, keys)) in _lines(read_limited(path))
    except (ConfigError, yaml.YAMLError):
        return False


@lru_cache(maxsize=4)
def _lines(content: bytes) -> dict[tuple[str, ...], int]:
    return dict(_places(content))


@dataclass
class _Place:
    """A mapping or sequence that is being read: the key in use (None: a key comes next) or the position."""

    is_mapping: bool
    key: Any
    is_key: bool


def _places(content: bytes) -> Iterator[tuple[tuple[str, ...], int]]:
    """Each key, as the names that lead to it, with its line; anchors are not followed."""
    opened: list[_Place] = []

    def path_of_keys() -> tuple[str, ...]:
        return tuple(str(place.key) for place in opened)

    def value_ends() -> None:
        if opened:
            opened[-1].key = None if opened[-1].is_mapping else opened[-1].key + 1

    for event in _events(content):
        line = event.start_mark.line + 1
        is_value = isinstance(event, yaml.AliasEvent | yaml.ScalarEvent)
        is_start = isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent)
        is_key = bool(opened) and opened[-1].key is None
        if is_key and (is_value or is_start):
            opened[-1].key = getattr(event, "value", "")  # a key that is not a text has no name here
            yield path_of_keys(), line
        elif opened and not opened[-1].is_mapping and (is_value or is_start):
            yield path_of_keys(), line
        if is_start:
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            opened.append(_Place(is_mapping, None if is_mapping else 0, is_key=is_key))
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            if not opened.pop().is_key:
                value_ends()
        elif is_value and not is_key:
            value_ends()
