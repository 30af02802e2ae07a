"""The one root schema of a resolved configuration, and the checks that types alone cannot express.

Hydra merges the YAML groups into `RootConfig`, so a wrong type or an unknown key is refused while composing. What a
model, a loss, a dataset or an optimizer takes is up to its class, so those four stay open mappings with a `_target_`.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from steptrace.config.names import near
from steptrace.errors import ConfigError

#: `_target_` prefixes that are always allowed; config/workflow.yaml adds the user's own in `allow_targets`.
ALLOWED_TARGETS = ("torch.", "steptrace.")
AUTOCAST = ("bf16", "fp16")
DEVICES = ("cpu", "cuda")
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
BACKENDS = ("nccl", "gloo")
COMM_HOOKS = ("bf16", "fp16")


@dataclass
class DataConfig:
    """The dataset and the arguments of its DataLoader."""

    dataset: dict[str, Any] = MISSING
    batch_size: int = MISSING
    num_workers: int = 0
    pin_memory: bool = False
    non_blocking: bool = False
    shuffle: bool = True
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    #: Copy the next batch to the device on a stream of its own while the step computes.
    device_prefetch: bool = False
    #: So many batches are loaded before the first step and gone through again and again: loading then costs nothing.
    pool: int | None = None


@dataclass
class ToleranceConfig:
    """Largest relative error against the float64 reference that still counts as the same answer.

    Of the loss, and of its gradient by the predictions. None: as the number format and the sizes give it
    (`steptrace.train.tolerance`).
    """

    loss: float | None = None
    gradient: float | None = None


@dataclass
class PrecisionConfig:
    """Number formats of a training."""

    name: str = MISSING
    autocast: str | None = None
    tf32: bool = False
    grad_scaler: bool = False
    tolerance: ToleranceConfig = field(default_factory=ToleranceConfig)


@dataclass
class StepConfig:
    """How one step is made.

    `accumulate` batches go into each optimizer step; `compile` is the mode of torch.compile, None for eager.
    """

    accumulate: int = 1
    set_to_none: bool = True
    channels_last: bool = False
    compile: str | None = None


@dataclass
class DistributedConfig:
    """Data-parallel training over `world_size` processes; with one there is no process group.

    `backend` None is nccl on GPUs and gloo on CPUs. `no_sync` reduces gradients with the last accumulated batch alone;
    `comm_hook` names the format that they are compressed to before they are sent.
    """

    world_size: int = 1
    backend: str | None = None
    bucket_cap_mb: float = 25.0
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    no_sync: bool = True
    comm_hook: str | None = None


@dataclass
class ScaleConfig:
    """How many steps are run, and on how many threads (None: as many as the process is given).

    `section_steps` are those of a pass that times each section by itself, with a synchronisation around it;
    `input_steps` those of one that times the parts of loading a batch. `memory_limit_mb` is what the training may take
    of the device's memory before it counts as out of memory (None: all there is). `nvml_period_s` is the time between
    two samples of the GPU's state during the timed steps (None: no sampling).
    """

    name: str = MISSING
    warmup_steps: int = MISSING
    timed_steps: int = MISSING
    section_steps: int = 0
    input_steps: int = 0
    threads: int | None = None
    memory_limit_mb: int | None = None
    nvml_period_s: float | None = 0.1


@dataclass
class ProfileConfig:
    """The profiled window, in steps, and what the profiler records in it."""

    wait: int = MISSING
    warmup: int = MISSING
    active: int = MISSING
    record_shapes: bool = True
    profile_memory: bool = True
    with_stack: bool = True


@dataclass
class EquivalenceConfig:
    """Seeds and batch size of the comparison with the float64 reference.

    `model` holds arguments of the model that differ there, such as a smaller width, where float64 would take too long.
    """

    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    batch_size: int = 2
    model: dict[str, Any] = field(default_factory=dict)


@dataclass
class RootConfig:
    """Everything one training needs to know."""

    seed: int = 0
    device: str = "cpu"
    model: dict[str, Any] = MISSING
    loss: dict[str, Any] = MISSING
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: dict[str, Any] = MISSING
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    step: StepConfig = field(default_factory=StepConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    equivalence: EquivalenceConfig = field(default_factory=EquivalenceConfig)
    python_path: list[str] = field(default_factory=list)


#: Smallest allowed value of every number.
_AT_LEAST = {
    "seed": 0,
    "data.batch_size": 1,
    "data.num_workers": 0,
    "data.prefetch_factor": 1,
    "data.pool": 1,
    "scale.warmup_steps": 0,
    "scale.timed_steps": 1,
    "step.accumulate": 1,
    "distributed.world_size": 1,
    "distributed.bucket_cap_mb": 0.001,
    "scale.section_steps": 0,
    "scale.input_steps": 0,
    "scale.threads": 1,
    "scale.memory_limit_mb": 1,
    "scale.nvml_period_s": 0.01,
    "profile.wait": 0,
    "profile.warmup": 0,
    "profile.active": 1,
    "equivalence.batch_size": 1,
}
_CHOICES: dict[str, Sequence[str]] = {
    "device": DEVICES,
    "precision.autocast": AUTOCAST,
    "step.compile": COMPILE_MODES,
    "distributed.backend": BACKENDS,
    "distributed.comm_hook": COMM_HOOKS,
}
_TARGETS = ("model", "loss", "data.dataset", "optimizer")


def check_config(config: Mapping[str, Any], *, allow: Iterable[str] = (), where: str) -> None:
    """Check a resolved configuration beyond its types.

    Args:
        config: the resolved configuration, keys as in `RootConfig`.
        allow: `_target_` prefixes the user allows besides `ALLOWED_TARGETS`.
        where: the file and variant, for the message.

    Raises:
        ConfigError: an unknown key, a value out of range, values that contradict each other, a target not allowed.
    """
    _check_keys(config, RootConfig, "", where)
    for key, low in _AT_LEAST.items():
        value = lookup(config, key)
        if value is not None and value < low:
            raise ConfigError(f"{key} is {value}", where=where, expected=f"at least {low}")
    for key, choices in _CHOICES.items():
        value = lookup(config, key)
        if value is not None and value not in choices:
            hint = near(str(value), choices)
            raise ConfigError(f"{key} is '{value}'", where=where, expected=" or ".join(choices), next_step=hint)
    _check_together(config, where)
    check_targets(config, allow=allow, where=where)


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted `key`, None if there is none."""
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def schema_keys(key: str = "") -> list[str] | None:
    """Return the keys the schema knows below the dotted `key`; None where anything goes."""
    node: Any = RootConfig
    for part in filter(None, key.split(".")):
        node = next((f.type for f in dataclasses.fields(node) if f.name == part), None)
        if not dataclasses.is_dataclass(node):
            return None
    return [f.name for f in dataclasses.fields(node)]


def _check_keys(config: Mapping[str, Any], schema: Any, prefix: str, where: str) -> None:
    fields = {f.name: f.type for f in dataclasses.fields(schema)}
    for key, value in config.items():
        if key not in fields:
            raise ConfigError(f"unknown key '{prefix}{key}'", where=where, next_step=near(key, fields))
        if dataclasses.is_dataclass(fields[key]):
            _check_keys(value, fields[key], f"{prefix}{key}.", where)


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


def check_targets(config: Mapping[str, Any], *, allow: Iterable[str] = (), where: str) -> None:
    """Check that every `_target_` begins with an allowed prefix, and that none of the four is missing.

    A configuration is code: whatever a `_target_` names is imported and called. The prefixes keep a YAML file from
    reaching further than its reader expects; they are no sandbox.
    """
    for key in _TARGETS:
        node = lookup(config, key)
        if not isinstance(node, Mapping) or "_target_" not in node:
            raise ConfigError(f"{key} has no _target_", where=where, expected="the dotted name of a class or function")
    prefixes = [*ALLOWED_TARGETS, *(f"{prefix.rstrip('.')}." for prefix in allow)]
    for key, target in targets(config):
        if not isinstance(target, str) or not target.startswith(tuple(prefixes)):
            top = str(target).split(".", maxsplit=1)[0]
            raise ConfigError(
                f"{key} is '{target}', which is not on the list of allowed prefixes ({', '.join(prefixes)})",
                where=where,
                next_step=f"if you trust it, add `allow_targets: [{top}]` to config/workflow.yaml",
            )


def targets(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every `_target_` of `config` as (dotted key, value)."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            if key == "_target_":
                yield f"{prefix}_target_", value
            else:
                yield from targets(value, f"{prefix}{key}.")
    elif isinstance(config, list):
        for index, value in enumerate(config):
            yield from targets(value, f"{prefix}{index}.")
