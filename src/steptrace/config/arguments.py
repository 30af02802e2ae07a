"""Whether what a `_target_` names takes the arguments that YAML gives it, told before anything is trained."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from steptrace.config.documents import read_yaml
from steptrace.config.schema import lookup
from steptrace.config.signature import parameters_of
from steptrace.errors import ConfigError
from steptrace.names import near

#: The parts of `_target_` nodes that are Hydra's own.
_HYDRAS = ("_target_", "_partial_", "_recursive_", "_convert_", "_args_")


def check_arguments(
    config: Mapping[str, Any],
    python_path: Sequence[Path],
    *,
    groups: Sequence[Path],
    where: str,
    checked: set[tuple[object, ...]],
) -> None:
    """Raise `ConfigError` for a key that a class or function of the configuration does not take.

    Args:
        config: a resolved configuration whose targets exist.
        python_path: folders searched before the installed packages.
        groups: the configuration folders, one of which holds the file to name.
        where: the study and variant, for what no file gives.
        checked: what was found right already; grows.
    """
    for key, target, names in _calls(config):
        call = (target, *names, *python_path)
        if not names or call in checked:
            continue
        taken = parameters_of(target, python_path)
        checked.add(call)
        for name in names:
            if taken is not None and name not in taken:
                raise ConfigError(
                    f"unknown key '{key}.{name}': {target} takes no argument '{name}'",
                    where=_file_of(key, name, target, groups) or where,
                    next_step=near(name, taken) if taken else "remove it: there is no argument that it takes",
                )


def _calls(config: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    """Every node with a `_target_`: its dotted key, the target, and the arguments it gives."""
    yield from _below(config, "")
    model = config["model"]
    # Given in place of the model's own where the answers are compared.
    yield "equivalence.model", str(model["_target_"]), _arguments(lookup(config, "equivalence.model") or {})


def _below(node: Any, key: str) -> Iterator[tuple[str, str, list[str]]]:
    if isinstance(node, list):
        for index, value in enumerate(node):
            yield from _below(value, f"{key}.{index}")
    elif isinstance(node, Mapping):
        if "_target_" in node:
            yield key, str(node["_target_"]), _arguments(node)
        for name, value in node.items():
            yield from _below(value, f"{key}.{name}" if key else str(name))


def _arguments(node: Mapping[str, Any]) -> list[str]:
    return [str(name) for name in node if name not in _HYDRAS]


def _file_of(key: str, name: str, target: str, groups: Sequence[Path]) -> str | None:
    """The file of a group that gives `target` the argument; None where an override does."""
    group, _, rest = key.partition(".")
    for folder in groups:
        for path in sorted((folder / group).glob("*.yaml")):
            document = read_yaml(path)
            node = lookup(document, rest) if rest else document
            if isinstance(node, Mapping) and node.get("_target_") == target and name in node:
                return str(path)
    return None
