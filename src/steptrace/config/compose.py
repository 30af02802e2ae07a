"""One resolved configuration: composed by Hydra from the YAML groups and a list of overrides, its `_target_`s allowed.

A configuration is code: whatever a `_target_` names is imported and called, when its variant starts. The prefixes keep
a YAML file from reaching further than its reader expects; they are no sandbox.
"""

import copy
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from warnings import catch_warnings, simplefilter

import msgspec
import yaml

from steptrace.config.convert import convert
from steptrace.config.groups import check_groups, place_of, with_line
from steptrace.config.schema import RootConfig, defaults
from steptrace.config.yaml_file import not_yaml
from steptrace.errors import ConfigError, meant
from steptrace.foreign_messages import HYDRA_FOLDERS, HYDRA_IN_FILE, HYDRA_NO_SUCH_NAME, OMEGACONF_PLACE

if TYPE_CHECKING:
    from omegaconf import DictConfig

#: `_target_` prefixes that are always allowed; config/workflow.yaml adds the user's own in `allow_targets`.
ALLOWED: Final = ("torch.nn.", "torch.optim.", "torch.utils.data.", "steptrace.workloads.")
#: The keys whose values must have a `_target_`.
_REQUIRED: Final = ("model", "loss", "data.dataset", "optimizer")
#: Hydra's own settings of how a program runs. Composing needs none of them, and to read them takes a quarter of its
#: time.
_LEFT_OUT: Final = [
    f"~hydra/{group}"
    for group in ("launcher", "sweeper", "output", "help", "hydra_help", "hydra_logging", "job_logging", "env")
]
#: Overrides that are left out in turn to find the wrong one.
_MOST_TRIED: Final = 30
#: The names in a dotted key of OmegaConf's, such as `a.b[0]`.
_NAMES: Final = re.compile(r"[^.\[\]]+")

#: Hydra's compositions of the same folders, by the chosen options, before single values are set.
Bases = dict[tuple[str, ...], "DictConfig"]


def compose(
    folders: Sequence[Path], overrides: Sequence[str], *, where: str, bases: Bases | None = None
) -> dict[str, Any]:
    """Return the resolved configuration under `overrides`, keys as in `RootConfig`.

    Args:
        folders: the configuration folders, each with one sub-folder per group; the first must hold config.yaml.
        overrides: in Hydra's syntax, such as `loss=where`, `data.batch_size=8`, `+model.bias=true`.
        where: the file and variant that hold the overrides, for messages.
        bases: keeps what calls for these folders have composed. Variants that choose the same options and differ in
            single values then share one composition by Hydra.

    Raises:
        ConfigError: an unknown group, option or key, or a value of the wrong type or out of its limits.
    """
    try:
        return _composed(folders, overrides, where, bases)
    except ConfigError as error:
        wrong = _wrong_override(folders, overrides) if len(overrides) > 1 else None
        if wrong is not None and wrong not in str(error):
            first, rest = error.what.partition("\n")[::2]
            error.what = "\n".join(filter(None, [f"{first} (override '{wrong}')", rest]))
        add_place(error, folders, overrides)
        raise


def add_place(error: ConfigError, folders: Sequence[Path], overrides: Sequence[str]) -> None:
    """Add to an error about a value of a composed configuration the file and line in which the value stands, if any."""
    keys = ".".join(map(str, error.keys))
    is_set = any(override.lstrip("+~").partition("=")[0] == keys for override in overrides)
    place = place_of(folders, overrides, error.keys) if error.keys and not is_set else None
    if place is not None and place not in (error.where or ""):
        error.where = f"{error.where}: {place}" if error.where else place


def _composed(folders: Sequence[Path], overrides: Sequence[str], where: str, bases: Bases | None) -> dict[str, Any]:
    # Hydra takes 0.15 s to import; where every composition is in the cache, nobody needs it.
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.core.override_parser.types import Quote, QuotedString
    from hydra.errors import HydraException, OverrideParseException
    from omegaconf import OmegaConf
    from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue, OmegaConfBaseException

    # Quoted: Hydra's grammar has no unquoted commas, brackets, quotation marks or non-ASCII letters.
    paths = [QuotedString(f"file://{folder.resolve()}", Quote.single).with_quotes() for folder in folders[1:]]
    more = [f"hydra.searchpath=[{','.join(paths)}]"] if paths else []

    def by_hydra(chosen: Sequence[str]) -> "DictConfig":
        check_groups(folders)  # before Hydra reads them
        ConfigStore.instance().store(name="steptrace_schema", node=defaults())
        with hydra.initialize_config_dir(str(folders[0].resolve()), version_base="1.3"), catch_warnings():
            simplefilter("ignore", UserWarning)  # about a missing `_self_`: `check_groups` warns of it
            return hydra.compose("config", overrides=[*_LEFT_OUT, *more, *chosen])

    for override in overrides:
        if not override.lstrip("+~").partition("=")[0].strip():
            raise _unreadable(override, where)
    try:
        composed = None if bases is None else _from_base(folders, overrides, by_hydra, bases)
        if composed is None:
            composed = by_hydra(overrides)
        resolved = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise not_yaml(error, f"{where}, {mark.name if mark else 'a group'}") from error
    except OverrideParseException as error:
        raise _unreadable(error.override, where) from error
    except (HydraException, OmegaConfBaseException, ValueError, RecursionError) as error:  # ValueError: `loss=4`
        match = HYDRA_NO_SUCH_NAME.find(error)
        next_step = _near(match["name"], folders) if match else None
        text = "an interpolation refers to itself" if isinstance(error, RecursionError) else _in_short(error)
        if isinstance(error, MissingMandatoryValue) and error.full_key:
            text = f"{error.full_key} has no value"
            next_step = f"set {error.full_key}, or choose an option of its group"
        elif isinstance(error, InterpolationKeyError):
            next_step = "write the whole name of a key there is, from the outermost, as in ${data.batch_size}"
        elif (named := HYDRA_IN_FILE.find(text)) is not None:
            text = text[named.end() :]
            file = next((path for folder in folders if (path := folder / f"{named['file']}.yaml").is_file()), None)
            where = f"{where}: {with_line(file, match['name']) if file and match else file or named['file']}"
        key = getattr(error, "full_key", None) or getattr(error.__cause__, "full_key", None) or ""
        raise ConfigError(text, where=where, next_step=next_step, keys=tuple(_NAMES.findall(key))) from error
    return dict(msgspec.to_builtins(convert(resolved, RootConfig, where=where)))


def _from_base(
    folders: Sequence[Path], overrides: Sequence[str], by_hydra: Callable[[Sequence[str]], "DictConfig"], bases: Bases
) -> "DictConfig | None":
    """Set values in what Hydra composes of the other overrides; None where that fails: then Hydra says why.

    Hydra does the same: options of groups first, wherever they stand, then values in their order. Values before a last
    `+key=value` or `~key` are left to Hydra.
    """
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        parsed = [(text, *_plain_value(text)) for text in overrides]
    except HydraException:
        return None
    is_group = [key is not None and any((folder / key).is_dir() for folder in folders) for _, key, _ in parsed]
    last = max((n for n, (_, key, _) in enumerate(parsed) if key is None), default=-1)
    set_here = {n for n in range(last + 1, len(parsed)) if not is_group[n]}
    chosen = tuple(text for n, text in enumerate(overrides) if n not in set_here)
    if chosen not in bases:
        bases[chosen] = by_hydra(chosen)
    composed = copy.deepcopy(bases[chosen])
    try:
        for n in sorted(set_here):
            OmegaConf.update(composed, str(parsed[n][1]), parsed[n][2], merge=True)
    except OmegaConfBaseException:
        return None
    return composed


@functools.lru_cache(maxsize=10_000)
def _plain_value(text: str) -> tuple[str | None, Any]:
    """Key and value of an override `key=value`; no key if it adds, deletes, sweeps or is one of Hydra's."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import OverrideType

    override = OverridesParser.create().parse_override(text)
    is_plain = override.type == OverrideType.CHANGE and override.package is None and not override.is_sweep_override()
    if not is_plain or override.is_hydra_override():
        return None, None
    return override.key_or_group, override.value()


def _unreadable(override: str, where: str) -> ConfigError:
    return ConfigError(
        f"the override '{override}' cannot be read",
        where=where,
        expected="key=value, +key=value, ~key or group=option",
        next_step="put a value with spaces, commas, brackets, braces, quotes, = or : in quotes: key='a: b'",
    )


def _in_short(error: Exception) -> str:
    """The text of one of Hydra's errors, without empty lines, the list of folders, and OmegaConf's names of a place."""
    text = HYDRA_FOLDERS.pattern.sub("", str(error))
    lines = [line for line in text.splitlines() if line.strip() and OMEGACONF_PLACE.find(line) is None]
    return "\n".join(lines) or f"Hydra cannot compose it ({type(error).__name__})"


def _wrong_override(folders: Sequence[Path], overrides: Sequence[str]) -> str | None:
    """The only override whose removal makes the rest valid; None if there is none, or more than one."""
    candidates = []
    for number, override in enumerate(overrides[:_MOST_TRIED]):
        with suppress(ConfigError):
            _composed(folders, [*overrides[:number], *overrides[number + 1 :]], "", None)
            candidates.append(override)
    return candidates[0] if len(candidates) == 1 else None


def _near(name: str, folders: Sequence[Path]) -> str | None:
    """A hint at the key (`data.batch_size`) or the group's option (`loss/where`) that a wrong override may mean."""
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
    """Check that every `_target_` begins with an allowed prefix, and that none of `_REQUIRED` is missing.

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
            raise ConfigError(
                f"{key} has no _target_",
                where=where,
                expected="the dotted name of a class or function",
                keys=tuple(key.split(".")),
            )
    prefixes = (*ALLOWED, *(f"{prefix.rstrip('.')}." for prefix in allow))
    for key, target in named.items():
        if not isinstance(target, str) or not target.startswith(prefixes):
            raise _not_allowed(key, str(target), [prefix.rstrip(".") for prefix in prefixes], where)


def _not_allowed(key: str, target: str, allowed: Sequence[str], where: str) -> ConfigError:
    """The error on a target without an allowed prefix: it may be misspelt, or the name of a module alone."""
    keys = tuple(key.split("."))
    parts = target.split(".")
    if len(parts) == 1 or any(f"{prefix}.".startswith(f"{target}.") for prefix in allowed):
        return ConfigError(
            f"{key} is '{target}'", where=where, expected="the dotted name of a class or function", keys=keys
        )
    # The rest of the name stays as it is.
    lengths = [(prefix, prefix.count(".") + 1) for prefix in allowed]
    spelt = [".".join([prefix, *parts[n:]]) for prefix, n in lengths if meant(".".join(parts[:n]), [prefix])]
    likely = meant(target, spelt)
    trust = f"if you trust it, add `allow_targets: [{_package(target)}]` to config/workflow.yaml"
    return ConfigError(
        f"{key} is '{target}', which is not in an allowed package ({', '.join(allowed)})",
        where=where,
        next_step=trust if likely is None else f"{likely} Or, {trust}",
        keys=keys,
    )


def _package(target: str) -> str:
    """What to allow for a target: its whole package, but of torch and steptrace the module alone."""
    top = target.partition(".")[0]
    return target.rpartition(".")[0] if top in ("torch", "steptrace") and target.count(".") > 1 else top
