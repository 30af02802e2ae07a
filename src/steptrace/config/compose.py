"""Composing one resolved configuration from the YAML groups and a list of Hydra overrides."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import hydra
import msgspec
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from steptrace.config.documents import convert, not_yaml
from steptrace.config.schema import RootConfig, defaults
from steptrace.errors import ConfigError
from steptrace.names import near

#: Characters of a message of Hydra's that are shown.
_LONGEST: Final = 200


def compose(folders: Sequence[Path], overrides: Sequence[str], *, where: str) -> dict[str, Any]:
    """Return the resolved configuration under `overrides`, keys as in `RootConfig`.

    Args:
        folders: the configuration folders, each with one sub-folder per group; the first must hold config.yaml.
        overrides: in Hydra's syntax, such as `loss=where`, `data.batch_size=8`, `+model.bias=true`.
        where: the file and variant the overrides stand in, for messages.

    Raises:
        ConfigError: an unknown group, option or key, or a value of the wrong type or out of its limits.
    """
    ConfigStore.instance().store(name="steptrace_schema", node=defaults())
    # Quoted: Hydra's grammar has no unquoted commas, brackets, quotation marks or non-ASCII letters.
    paths = [QuotedString(f"file://{folder.resolve()}", Quote.single).with_quotes() for folder in folders[1:]]
    more = [f"hydra.searchpath=[{','.join(paths)}]"] if paths else []
    try:
        with hydra.initialize_config_dir(str(folders[0].resolve()), version_base="1.3"):
            composed = hydra.compose("config", overrides=[*more, *overrides])
        resolved = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except MissingConfigException as error:
        raise _missing_option(error, where) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise not_yaml(error, where=f"{where}, {mark.name if mark else 'a group'}") from error
    except RecursionError:
        raise ConfigError("an override or a group is nested too deep", where=where) from None
    except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: `loss=4`
        raise _readable(error, where) from error
    try:
        config = convert(resolved, RootConfig, where=where)
    except ConfigError as error:
        error.where = f"{where}{_override_of(error.what, overrides)}"
        raise
    return dict(msgspec.to_builtins(config))


def _missing_option(error: MissingConfigException, where: str) -> ConfigError:
    group, _, option = str(error.missing_cfg_file or "").rpartition("/")
    if not group:
        return ConfigError(_in_short(error), where=where)
    hint = near(option, error.options or [])
    return ConfigError(f"there is no '{option}' in the group '{group}'", where=where, next_step=hint)


def _readable(error: Exception, where: str) -> ConfigError:
    """Hydra's own words, and for an unknown key the nearest name; the useful part is often in the cause."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key, full_key, parent = (getattr(cause, name, None) for name in ("key", "full_key", "parent_node"))
    if full_key and parent is not None and "not in struct" in str(cause):
        hint = f"{near(str(key), map(str, parent))}; a new key is added with `+{full_key}=...`"
        return ConfigError(f"unknown key '{full_key}'", where=where, next_step=hint)
    if "Missing mandatory value" in str(cause):
        return ConfigError(f"{full_key} has no value", where=where, next_step=f"choose a group or set {full_key}=...")
    return ConfigError(_in_short(error), where=where)


def _in_short(error: BaseException) -> str:
    """A message in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2]) if lines else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _override_of(what: str, overrides: Sequence[str]) -> str:
    """The last override whose key an error names."""
    names = what.replace("'", " ").replace("[", " ").split()
    matching = [override for override in overrides if override.lstrip("+~").partition("=")[0] in names]
    return f", override '{matching[-1][:_LONGEST]}'" if matching else ""
