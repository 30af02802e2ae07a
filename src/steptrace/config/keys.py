"""The keys of the schema by name: what each takes, for messages and tables, and the check of a configuration."""

import dataclasses
import json
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, get_args, get_origin

from omegaconf import MISSING

from steptrace.config.documents import check_numbers, lookup
from steptrace.config.schema import MOST, RootConfig
from steptrace.config.targets import check_allowed
from steptrace.errors import ConfigError
from steptrace.names import near

_TYPES: Final[dict[Any, str]] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict[str, Any]: "a mapping",
    types.NoneType: "null",
    list[int]: "a list of whole numbers",
    list[str]: "a list of texts",
}
_EXAMPLES: Final[dict[Any, str]] = {list[int]: ", such as [0,1]", list[str]: ", such as [a,b]"}
#: `equivalence.seeds[0]` is an item of `equivalence.seeds`.
_ITEM: Final = re.compile(r"\[\d+\]\Z")


@dataclass(frozen=True)
class Key:
    """A key of the configuration that is not a section."""

    name: str
    field: "dataclasses.Field[Any]"

    def expected(self, *, item: bool = False) -> str:
        """Return what the key takes, such as `a whole number of at least 1 or null`; `item`: what its list holds."""
        kind: Any = get_args(self.field.type)[0] if item else self.field.type
        choices = self.field.metadata["choices"]
        kinds = get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
        first, *more = [" or ".join(choices) if choices and part is str else _TYPES[part] for part in kinds]
        return " or ".join([f"{first}{self._limits()}{_EXAMPLES.get(kind, '')}", *more])

    def _limits(self) -> str:
        low, high = self.field.metadata["at_least"], self.field.metadata["at_most"]
        if low is None:
            return ""
        return f" of at least {low:g}" if high == MOST else f" of at least {low:g} and at most {high:g}"

    def check(self, value: Any, where: str) -> None:
        """Refuse a value out of the key's range or choices; of a list each."""
        if get_origin(self.field.type) is list:
            for index, each in enumerate(value):
                self._check_one(each, f"{self.name}[{index}]", where, item=True)
        else:
            self._check_one(value, self.name, where)

    def _check_one(self, value: Any, name: str, where: str, *, item: bool = False) -> None:
        low, high, choices = (self.field.metadata[key] for key in ("at_least", "at_most", "choices"))
        hint, expected = None, self.expected(item=item)
        if isinstance(value, str):
            if not choices or value in choices:
                return
            hint = near(value, choices)
        elif not isinstance(value, int | float) or ((low is None or value >= low) and value <= high):
            return
        elif value > high:
            expected = f"at most {high}"
        shown = f"'{value}'" if isinstance(value, str) else value
        raise ConfigError(f"{name} is {shown}", where=where, expected=expected, next_step=hint)


@cache
def keys() -> dict[str, Key]:
    """Return every key that is not a section, by its dotted name."""
    return {key.name: key for key in _keys(RootConfig, "")}


def _keys(schema: Any, prefix: str) -> Iterator[Key]:
    for each in dataclasses.fields(schema):
        if dataclasses.is_dataclass(each.type):
            yield from _keys(each.type, f"{prefix}{each.name}.")
        else:
            yield Key(f"{prefix}{each.name}", each)


def expected_at(name: str) -> str | None:
    """Return what the dotted key `name` takes; None where the schema leaves it open."""
    key = keys().get(_ITEM.sub("", name))
    if key is None or key.field.type == dict[str, Any]:
        return None
    return key.expected(item=_ITEM.search(name) is not None and get_origin(key.field.type) is list)


def key_table() -> str:
    """Return the table of all keys in config/README.md."""
    lines = ["| key | takes | default | meaning |", "|---|---|---|---|"]
    for key in keys().values():
        factory = key.field.default_factory
        default = key.field.default if factory is dataclasses.MISSING else factory()
        cell = "" if default == MISSING else f"`{default if isinstance(default, str) else json.dumps(default)}`"
        lines.append(f"| `{key.name}` | {key.expected()} | {cell} | {key.field.metadata['meaning']} |")
    return "\n".join(lines) + "\n"


def schema_keys(name: str = "") -> list[str] | None:
    """Return the keys the schema knows below the dotted key `name`; None where anything goes."""
    node: Any = RootConfig
    for part in filter(None, name.split(".")):
        node = next((f.type for f in dataclasses.fields(node) if f.name == part), None)
        if not dataclasses.is_dataclass(node):
            return None
    return [f.name for f in dataclasses.fields(node)]


def check_config(config: Mapping[str, Any], *, allow: Iterable[str] = (), where: str) -> None:
    """Check a resolved configuration beyond its types.

    Args:
        config: the resolved configuration, keys as in `RootConfig`.
        allow: `_target_` prefixes the user allows besides `ALLOWED`.
        where: the file and variant, for the message.

    Raises:
        ConfigError: an unknown key, a value out of range, values that contradict each other, a target not allowed.
    """
    _check_unknown(config, "", where)
    check_numbers(config, where=where)
    for name, key in keys().items():
        key.check(lookup(config, name), where)
    _check_together(config, where)
    check_allowed(config, allow=allow, where=where)


def _check_unknown(config: Mapping[str, Any], section: str, where: str) -> None:
    known = schema_keys(section)
    for key, value in config.items() if known is not None else ():
        name = f"{section}.{key}" if section else key
        if key not in (known or ()):
            raise ConfigError(f"unknown key '{name}'", where=where, next_step=near(key, known or ()))
        if isinstance(value, Mapping):
            _check_unknown(value, name, where)


def _check_together(config: Mapping[str, Any], where: str) -> None:
    data, precision = config["data"], config["precision"]
    if data["num_workers"] == 0:
        for key in ("prefetch_factor", "persistent_workers"):
            if data[key]:
                raise ConfigError(
                    f"data.{key} is {data[key]} but data.num_workers is 0",
                    where=where,
                    next_step=f"set data.num_workers, or data.{key}={'null' if key == 'prefetch_factor' else 'false'}",
                )
    if precision["grad_scaler"] and precision["autocast"] != "fp16":
        raise ConfigError(
            "precision.grad_scaler is true without fp16 autocast",
            where=where,
            next_step="choose precision=fp16, or precision.grad_scaler=false",
        )
    if config["distributed"]["backend"] == "nccl" and config["device"] == "cpu":
        raise ConfigError(
            "distributed.backend is nccl but device is cpu",
            where=where,
            next_step="leave distributed.backend at null: nccl on GPUs, gloo on CPUs",
        )
    if not config["equivalence"]["seeds"]:
        raise ConfigError("equivalence.seeds is empty", where=where, expected="at least one seed")
