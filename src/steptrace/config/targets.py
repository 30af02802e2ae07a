"""The `_target_`s of a configuration, and which of them are allowed.

A configuration is code: whatever a `_target_` names is imported and called, when its variant starts. The prefixes keep
a YAML file from reaching further than its reader expects; they are no sandbox.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from steptrace.config.documents import lookup
from steptrace.errors import ConfigError

#: `_target_` prefixes that are always allowed; config/workflow.yaml adds the user's own in `allow_targets`.
ALLOWED: Final = ("torch.nn.", "torch.optim.", "torch.utils.data.", "steptrace.workloads.")
#: What has to have a `_target_`.
_REQUIRED: Final = ("model", "loss", "data.dataset", "optimizer")


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
    for key in _REQUIRED:
        if not isinstance(lookup(config, f"{key}._target_"), str):
            raise ConfigError(f"{key} has no _target_", where=where, expected="the dotted name of a class or function")
    prefixes = (*ALLOWED, *(f"{prefix.rstrip('.')}." for prefix in allow))
    for key, target in targets(config):
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
