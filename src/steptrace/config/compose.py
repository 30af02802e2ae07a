"""Composing one resolved configuration from the YAML groups and a list of Hydra overrides."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import hydra
import msgspec
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from steptrace.config.documents import convert, not_yaml
from steptrace.config.schema import RootConfig, defaults
from steptrace.errors import ConfigError
from steptrace.names import meant

#: Hydra's own settings of how a program runs, which composing needs none of: a quarter of its time.
_LEFT_OUT: Final = [
    f"~hydra/{group}"
    for group in ("launcher", "sweeper", "output", "help", "hydra_help", "hydra_logging", "job_logging", "env")
]
#: How Hydra begins to say that there is no such key, group or option.
_UNKNOWN: Final = re.compile(r"Could not (?:override|find) '(?P<name>[^']+)'")


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
            composed = hydra.compose("config", overrides=[*_LEFT_OUT, *more, *overrides])
        resolved = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise not_yaml(error, f"{where}, {mark.name if mark else 'a group'}") from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: `loss=4`
        match = _UNKNOWN.search(str(error))
        next_step = _near(match["name"], folders) if match else None
        raise ConfigError(str(error).strip(), where=where, next_step=next_step) from error
    return dict(msgspec.to_builtins(convert(resolved, RootConfig, where=where)))


def _near(name: str, folders: Sequence[Path]) -> str | None:
    """The key that an override may mean (`loss`, `data.batch_size`), or the option: of `loss=where` `loss/where`."""
    files = [path.relative_to(folder).with_suffix("") for folder in folders for path in folder.glob("*/*.yaml")]
    options = {*_dotted(defaults()), *(file.as_posix() for file in files)}
    return meant(name, (option for option in options if option.count(".") == name.count(".")))


def _dotted(keys: Mapping[str, Any], section: str = "") -> Iterator[str]:
    for name, value in keys.items():
        yield f"{section}{name}"
        yield from _dotted(value, f"{section}{name}.") if isinstance(value, dict) else ()
