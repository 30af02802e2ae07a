"""One resolved configuration: composed by Hydra from the YAML groups and a list of overrides, its `_target_`s allowed.

A configuration is code: whatever a `_target_` names is imported and called, when its variant starts. The prefixes keep
a YAML file from reaching further than its reader expects; they are no sandbox.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from steptrace.config.schema import RootConfig, defaults
from steptrace.config.settings import convert, not_yaml
from steptrace.errors import ConfigError, meant

#: `_target_` prefixes that are always allowed; config/workflow.yaml adds the user's own in `allow_targets`.
ALLOWED: Final = ("torch.nn.", "torch.optim.", "torch.utils.data.", "steptrace.workloads.")
#: What has to have a `_target_`.
_REQUIRED: Final = ("model", "loss", "data.dataset", "optimizer")
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
    # Hydra takes 0.15 s to import; where every composition is in the cache, nobody needs it.
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.core.override_parser.types import Quote, QuotedString
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

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


def targets(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every `_target_` below a node as (dotted key, value)."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            place = f"{key}.{name}" if key else str(name)
            if name == "_target_":
                yield place, value
            yield from targets(value, place)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from targets(value, f"{key}.{index}")


def check_allowed(config: Mapping[str, Any], *, allow: Iterable[str] = (), where: str) -> None:
    """Check that every `_target_` begins with an allowed prefix, and that none of the four is missing.

    Args:
        config: a resolved configuration.
        allow: prefixes that the user allows besides `ALLOWED`.
        where: the file and variant, for the message.

    Raises:
        ConfigError: naming the entry of `allow_targets` that would allow it.
    """
    named = dict(targets(config))
    for key in _REQUIRED:
        if not isinstance(named.get(f"{key}._target_"), str):
            raise ConfigError(f"{key} has no _target_", where=where, expected="the dotted name of a class or function")
    prefixes = (*ALLOWED, *(f"{prefix.rstrip('.')}." for prefix in allow))
    for key, target in named.items():
        if not isinstance(target, str) or not target.startswith(prefixes):
            shown = ", ".join(prefix.rstrip(".") for prefix in prefixes)
            raise ConfigError(
                f"{key} is '{target}', which is not in an allowed package ({shown})",
                where=where,
                next_step=f"if you trust it, add `allow_targets: [{_package(str(target))}]` to config/workflow.yaml",
            )


def _package(target: str) -> str:
    """What to allow for a target: its whole package, but of torch and steptrace the module alone."""
    top = target.partition(".")[0]
    return target.rpartition(".")[0] if top in ("torch", "steptrace") and target.count(".") > 1 else top
