"""Composing one resolved configuration from the YAML groups and a list of Hydra overrides.

Composing costs about 50 ms, so it is done once per combination of groups; plain `key=value` overrides are merged into
a copy of the result, under the same schema; tests/config/test_compose_equality.py compares the results with Hydra's
own. Every error becomes one `ConfigError` that names the override or file.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from steptrace.config.documents import not_yaml
from steptrace.config.keys import expected_at, schema_keys
from steptrace.config.schema import RootConfig
from steptrace.errors import ConfigError
from steptrace.names import near

_PLAIN = re.compile(r"(?P<key>[A-Za-z_][\w./]*)=(?P<value>.*)", re.DOTALL)
#: Folders of the configuration that are not Hydra groups.
_NOT_GROUPS = {"study"}
#: How OmegaConf names a value of the wrong type.
_VALUE = re.compile(r"Value '(?P<value>.*)' (?:of type|is not a valid)|(?P<null>is not Optional)")
#: Characters of an override that a message shows.
_LONGEST = 150
_NO_PLACES: Mapping[str, str] = {}


class Composer:
    """Composes configurations from one or more folders of YAML groups, remembering each combination of groups.

    Args:
        folders: the folders, each with one sub-folder per group; the first must hold config.yaml.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder.resolve() for folder in folders]
        self._groups = {path.name for folder in folders for path in folder.iterdir() if path.is_dir()} - _NOT_GROUPS
        self._bases: dict[tuple[str, ...], DictConfig] = {}
        ConfigStore.instance().store(name="steptrace_schema", node=RootConfig)

    def compose(
        self, overrides: Sequence[str], *, where: str, places: Mapping[str, str] = _NO_PLACES
    ) -> dict[str, Any]:
        """Return the resolved configuration under `overrides`; of two that choose the same group the later counts.

        Args:
            overrides: in Hydra's syntax, such as `loss=where`, `data.batch_size=8`, `+model.bias=true`.
            where: the file and variant the overrides stand in, for messages.
            places: where an override stands instead, for those that do not.

        Raises:
            ConfigError: an unknown group, option or key, or a value of the wrong type.
        """
        try:
            return self._composed(overrides, where, places)
        except RecursionError:
            longest = max(overrides, key=len, default="")[:_LONGEST]
            raise ConfigError(f"'{longest}...' or a group is nested too deep", where=where) from None

    def _composed(self, overrides: Sequence[str], where: str, places: Mapping[str, str]) -> dict[str, Any]:
        chosen: dict[str, str] = {}
        plain: list[str] = []
        special: list[str] = []
        for override in overrides:
            match = _PLAIN.fullmatch(override)
            if match is None:
                special.append(override)
            elif match["key"] in self._groups:
                chosen[match["key"]] = override
            else:
                plain.append(override)
        base = self._base(tuple(sorted(chosen.values())), where, places)
        if special:  # additions and deletions are rare; Hydra itself knows their order of application
            config = self._compose([*chosen.values(), *plain, *special], where, places, base)
        else:
            config = copy.deepcopy(base)
            self._merge(config, plain, where, places)
        return _resolve(config, where)

    def _base(self, groups: tuple[str, ...], where: str, places: Mapping[str, str]) -> DictConfig:
        if groups not in self._bases:
            self._bases[groups] = self._compose(groups, where, places)
        return self._bases[groups]

    def _compose(
        self, overrides: Sequence[str], where: str, places: Mapping[str, str], base: DictConfig | None = None
    ) -> DictConfig:
        # Quoted: Hydra's grammar has no unquoted commas, brackets, quotation marks or non-ASCII letters.
        paths = [QuotedString(f"file://{folder}", Quote.single).with_quotes() for folder in self._folders[1:]]
        more = [f"hydra.searchpath=[{','.join(paths)}]"] if paths else []
        try:
            with initialize_config_dir(str(self._folders[0]), version_base="1.3"):
                return compose("config", overrides=[*more, *overrides])
        except MissingConfigException as error:
            raise self._missing(error, where, places) from error
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            raise not_yaml(error, where=f"{where}, {mark.name if mark else 'a group'}") from error
        except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: `loss=4`
            raise self._readable(error, overrides, where, places, base) from error

    def _merge(self, config: DictConfig, overrides: Sequence[str], where: str, places: Mapping[str, str]) -> None:
        for override in overrides:
            try:
                parsed = OverridesParser.create().parse_overrides([override])[0]
                if parsed.is_sweep_override():
                    raise ConfigError(
                        f"'{override}' gives several values",
                        where=places.get(override, where),
                        next_step="write a list as [a,b], text as 'a,b', and a product of values under `matrix:`",
                    )
                OmegaConf.update(config, parsed.key_or_group, parsed.value(), merge=True)
            except (HydraException, OmegaConfBaseException) as error:
                raise self._readable(error, [override], where, places, config) from error

    def _missing(self, error: MissingConfigException, where: str, places: Mapping[str, str]) -> ConfigError:
        group, _, option = str(error.missing_cfg_file or "").rpartition("/")
        if not group:
            return ConfigError(_one_line(error), where=where)
        where = places.get(f"{group}={option}", where)
        hint = near(option, error.options or [])
        return ConfigError(f"there is no '{option}' in the group '{group}'", where=where, next_step=hint)

    def _readable(
        self,
        error: Exception,
        overrides: Sequence[str],
        where: str,
        places: Mapping[str, str],
        config: DictConfig | None = None,
    ) -> ConfigError:
        """Turn an error of Hydra or OmegaConf into one message; the useful part is often in its cause."""
        cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
        text = f"{error}\n{cause}"
        full_key = match[1] if (match := re.search(r"full_key: (\S+)", text)) else None
        file = match[1] if (match := re.search(r"In '([^']+)'", text)) else None
        override = _culprit(text, full_key, overrides)
        if override:
            shown = override if len(override) <= _LONGEST else f"{override[:_LONGEST]}..."
            where = f"{places.get(override, where)}, override '{shown}'"
        elif file:
            where = f"{where}, {file}.yaml"
        if full_key and re.search(r"Key '[^']*' (is )?not in", text):
            return self._unknown_key(full_key, where, config)
        if isinstance(error, OverrideParseException):
            lines = str(error).splitlines()
            return ConfigError(
                f"is not a valid override: {lines[min(1, len(lines) - 1)]}", where=where, expected="key=value"
            )
        reason = _one_line(cause)
        if full_key is None:
            return ConfigError(reason, where=where)
        expected, given = expected_at(full_key), _VALUE.search(reason)
        if expected and given:
            shown = "null" if given["null"] else f"'{given['value']}'"
            return ConfigError(f"{full_key} is {shown}", where=where, expected=expected)
        return ConfigError(f"{full_key}: {reason}", where=where, expected=expected)

    def _unknown_key(self, full_key: str, where: str, config: DictConfig | None) -> ConfigError:
        parent, _, name = full_key.rpartition(".")
        known = schema_keys(parent)
        if known is None:  # an open mapping, such as a model's arguments
            node = None if config is None else OmegaConf.select(config, parent)
            hint = f"{near(name, map(str, node))}; " if isinstance(node, DictConfig) and node else ""
            step = f"{hint}a key that its YAML file does not list is added with `+{full_key}=...`"
            return ConfigError(f"unknown key '{full_key}'", where=where, next_step=step)
        options = [*known, *self._groups] if not parent else known
        return ConfigError(f"unknown key '{full_key}'", where=where, next_step=near(name, options))


def _culprit(text: str, full_key: str | None, overrides: Sequence[str]) -> str | None:
    """Return the override that an error is about, if it is one of them."""
    if len(overrides) == 1:
        return overrides[0]
    for override in overrides:
        if override in text or (full_key and override.lstrip("+~").startswith(f"{full_key}=")):
            return override
    return None


def _resolve(config: DictConfig, where: str) -> dict[str, Any]:
    try:
        resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key = match[1] if (match := re.search(r"full_key: (\S+)", str(error))) else "a key"
        raise ConfigError(f"{key} has no value", where=where, next_step=f"choose a group or set {key}=...") from error
    except OmegaConfBaseException as error:
        raise ConfigError(_one_line(error), where=where) from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith("while composing config:"):
        return lines[1]  # the first only names the file
    return lines[0] if lines else type(error).__name__
