"""Reads plain data, as YAML gives it, into declared types. An error names the file, the line and the key."""

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from steptrace.config.yaml_file import line_of
from steptrace.errors import ConfigError, near
from steptrace.foreign_messages import MSGSPEC_MISSING_FIELD, MSGSPEC_PATTERN, MSGSPEC_PLACE, MSGSPEC_WRONG_NAME

_T = TypeVar("_T")
#: Characters of a name that a message shows.
_SHOWN: Final = 60


def convert(
    document: Any, kind: type[_T], *, where: str | Path, file: Path | None = None, at: Sequence[Hashable] = ()
) -> _T:
    """Read plain data into a type with limits.

    Args:
        document: as YAML gives it.
        kind: a msgspec struct, or another type that msgspec converts to.
        where: the file, and the place of `document` in it, for messages.
        file: the YAML file that `document` is from, so that messages have its line.
        at: the keys that lead to `document` in the file.

    Raises:
        ConfigError: an unknown or missing key, or a value of the wrong type or out of its limits.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        problem = _innermost(document, kind, ()) or _Problem((), str(error), kind)
        raise problem.error(where, file, at) from error
    except RecursionError as error:
        raise ConfigError("is nested too deeply", where=where) from error


class _Problem:
    """An error, and the keys that lead to the wrong value; if a key is wrong, they lead to that key."""

    def __init__(self, at: tuple[Hashable, ...], text: str, kind: Any, *, key: bool = False) -> None:
        self.at = at
        self.text = text
        self.kind = kind
        self.is_key = key

    def error(self, where: str | Path, file: Path | None, at: Sequence[Hashable]) -> ConfigError:
        match = MSGSPEC_WRONG_NAME.find(self.text)
        place = [*self.at, match["key"]] if match is not None and match["key"] else list(self.at)
        line = None if file is None else line_of(file, [*at, *place])
        shown = _dotted(self.at[:-1] if self.is_key else self.at)
        text = self.text
        expected = None
        if self.is_key and not isinstance(self.at[-1], str):
            text = f"{self.text} for the name '{self.at[-1]}'"
            expected = "a name in quotes"
        elif self.is_key:
            text = f"'{str(self.at[-1])[:_SHOWN]}' is not a valid name"
            expected = _form_of(self.kind) or self.text
        elif form := _form_of(self.kind):
            expected = form
            text = MSGSPEC_PATTERN.pattern.sub("", text)
        missing = MSGSPEC_MISSING_FIELD.find(self.text)
        place_of = str(where)
        if line is not None and (place_of == str(file) or place_of.startswith(f"{file}, ")):
            place_of = f"{file}, line {line}{place_of.removeprefix(str(file))}"
        return ConfigError(
            text + (f" - {'in' if self.is_key else 'at'} `{shown}`" if shown else ""),
            where=place_of,
            expected=expected,
            next_step=self._hint(match),
            keys=(*at, *place, *([missing["key"]] if missing is not None else [])),
        )

    def _hint(self, match: re.Match[str] | None) -> str | None:
        """A hint: for an unknown key the nearest declared one, for a wrong value the allowed values."""
        if (missing := MSGSPEC_MISSING_FIELD.find(self.text)) is not None:
            return f"add `{missing['key']}:`"
        if match is None or self.is_key:
            return None
        if match["key"]:
            kinds = [plain for option in _options(self.kind) if isinstance(plain := _plain(option), type)]
            return near(match["key"], [name for kind in kinds for name in get_type_hints(kind)])
        options = [option for part in _options(self.kind) for option in get_args(_plain(part))]
        return f"choose {' or '.join(map(str, options))}"


def _innermost(value: Any, kind: Any, at: tuple[Hashable, ...]) -> _Problem | None:
    """The innermost part that msgspec refuses; None if it accepts all of `value`."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error)
    else:
        return None
    for name, part, part_kind, is_key in _parts(value, kind):
        if is_key:
            try:
                msgspec.convert(name, part_kind)
            except msgspec.ValidationError as error:
                return _Problem((*at, name), str(error), part_kind, key=True)
        elif (problem := _innermost(part, part_kind, (*at, name))) is not None:
            return problem
    return _Problem(at, MSGSPEC_PLACE.pattern.sub("", text), kind)


def _parts(value: Any, kind: Any) -> Iterator[tuple[Hashable, Any, Any, bool]]:
    """The parts of a mapping or list: name, value, declared type, and whether the name declares that type."""
    for option in _options(kind):
        plain = _plain(option)
        origin = get_origin(plain) or plain
        arguments = get_args(plain)
        if isinstance(value, Mapping) and isinstance(plain, type) and issubclass(plain, msgspec.Struct):
            hints = get_type_hints(plain, include_extras=True)
            yield from ((name, value[name], hint, False) for name, hint in hints.items() if name in value)
        elif isinstance(value, Mapping) and origin is dict and arguments:
            for name, part in value.items():
                yield name, name, arguments[0], True
                yield name, part, arguments[1], False
        elif isinstance(value, list) and origin is list and arguments:
            yield from ((number, part, arguments[0], False) for number, part in enumerate(value))


def _plain(kind: Any) -> Any:
    """A type without its annotations."""
    return _plain(get_args(kind)[0]) if get_origin(kind) is Annotated else kind


def _options(kind: Any) -> list[Any]:
    """The types of a union without None; for any other type, the type itself."""
    plain = _plain(kind)
    if get_origin(plain) in (Union, UnionType):
        return [option for part in get_args(plain) if part is not NoneType for option in _options(part)]
    return [kind]


def _form_of(kind: Any) -> str | None:
    """The form that a text of this type must have, in words; None if the type does not say it."""
    notes = [note for note in get_args(kind)[1:] if isinstance(note, Meta)] if get_origin(kind) is Annotated else []
    return next((note.title for note in notes if note.pattern is not None and note.title), None)


def _dotted(keys: Sequence[Hashable]) -> str:
    """`gates.study.variant`, `studies[0]`."""
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f"{'.' if text else ''}{str(key)[:_SHOWN]}"
    return text
