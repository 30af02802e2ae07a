"""The one root schema of a resolved configuration: each key described once, with its type, range, choices and meaning.

Hydra merges the YAML groups into `RootConfig`, so a wrong type or an unknown key is refused while composing. Ranges and
choices are checked here, from the same description that messages and the table in config/README.md are made from. What
a model, a loss, a dataset or an optimizer takes is up to its class, so those four stay open mappings with a `_target_`.
"""

import dataclasses
import json
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, get_args, get_origin

from omegaconf import MISSING

from steptrace.config.documents import check_numbers, lookup
from steptrace.config.targets import check_allowed
from steptrace.errors import ConfigError
from steptrace.names import near

#: What a number may be at most, where a key does not say less.
_MOST: Final = 10**9
#: The same of processes and threads that one training starts.
_MOST_PROCESSES: Final = 4096


def _key(
    default: Any, meaning: str, *, at_least: float | None = None, at_most: float = _MOST, choices: Sequence[str] = ()
) -> Any:
    """A field with its description: `default` may be a function that makes it, the limits are those of a number."""
    metadata = {"meaning": meaning, "at_least": at_least, "at_most": at_most, "choices": tuple(choices)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class DataConfig:
    """The dataset and the arguments of its DataLoader."""

    dataset: dict[str, Any] = _key(MISSING, "a `_target_` with its arguments")
    batch_size: int = _key(MISSING, "samples in a batch, of each rank", at_least=1)
    num_workers: int = _key(
        0, "processes that load batches; with 0 the training loads them itself", at_least=0, at_most=_MOST_PROCESSES
    )
    pin_memory: bool = _key(False, "load batches into pinned host memory, where there is a GPU")
    non_blocking: bool = _key(False, "copy batches to the device without waiting for the copy")
    shuffle: bool = _key(True, "draw samples in random order")
    prefetch_factor: int | None = _key(None, "batches that each worker loads ahead", at_least=1)
    persistent_workers: bool = _key(False, "keep the workers from one epoch to the next")
    device_prefetch: bool = _key(False, "copy the next batch to the device on its own stream during the step")
    pool: int | None = _key(None, "load this many batches before the first step and reuse them in turn", at_least=1)


@dataclass
class ToleranceConfig:
    """Largest relative error against the float64 reference that still counts as the same answer.

    Null: as the number formats and the sizes give it (`steptrace.train.tolerance`).
    """

    loss: float | None = _key(None, "largest relative error of the loss", at_least=0)
    gradient: float | None = _key(None, "largest relative error of its gradient by the predictions", at_least=0)


@dataclass
class PrecisionConfig:
    """Number formats of a training."""

    name: str = _key(MISSING, "name of the number format, for tables")
    autocast: str | None = _key(None, "number format of autocast; null for none", choices=("bf16", "fp16"))
    tf32: bool = _key(False, "allow TF32 in float32 matrix products and convolutions")
    grad_scaler: bool = _key(False, "scale the loss (`torch.amp.GradScaler`); for fp16 only")
    tolerance: ToleranceConfig = field(default_factory=ToleranceConfig)


@dataclass
class StepConfig:
    """How one step is made."""

    accumulate: int = _key(1, "batches whose gradients are added up in one optimizer step", at_least=1)
    set_to_none: bool = _key(True, "`zero_grad` frees gradients instead of filling them with zeros")
    channels_last: bool = _key(False, "store weights and images of convolutions in channels-last order")
    compile: str | None = _key(
        None,
        "mode of torch.compile; null for eager execution",
        choices=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    )


@dataclass
class DistributedConfig:
    """Data-parallel training over `world_size` processes; with one there is no process group."""

    world_size: int = _key(1, "number of data-parallel processes (ranks)", at_least=1, at_most=_MOST_PROCESSES)
    backend: str | None = _key(None, "null is nccl on GPUs and gloo on CPUs", choices=("nccl", "gloo"))
    bucket_cap_mb: float = _key(25.0, "size of a gradient bucket, in MiB", at_least=0.001)
    gradient_as_bucket_view: bool = _key(False, "gradients are views of the buckets, without a copy")
    static_graph: bool = _key(False, "tell DistributedDataParallel that the graph is the same in every step")
    no_sync: bool = _key(True, "reduce gradients with the last accumulated batch only")
    comm_hook: str | None = _key(None, "format in which gradients are sent; null for theirs", choices=("bf16", "fp16"))


@dataclass
class ScaleConfig:
    """How many steps are run, and on how many threads."""

    name: str = _key(MISSING, "name of the scale, for tables")
    warmup_steps: int = _key(MISSING, "steps before the timed ones", at_least=0)
    timed_steps: int = _key(MISSING, "steps that are timed, without a profiler", at_least=1)
    section_steps: int = _key(0, "steps of a separate pass that synchronises around each section", at_least=0)
    input_steps: int = _key(0, "steps of a separate pass that times the parts of loading a batch", at_least=0)
    threads: int | None = _key(
        None, "CPU threads of a process; null for as many as it is given", at_least=1, at_most=_MOST_PROCESSES
    )
    memory_limit_mb: int | None = _key(
        None, "device memory in MiB above which the training counts as out of memory; null for all of it", at_least=1
    )
    nvml_period_s: float | None = _key(0.1, "seconds between samples of the GPU's state; null for none", at_least=0.01)


@dataclass
class ProfileConfig:
    """The profiled window, in steps, and what the profiler records in it."""

    wait: int = _key(MISSING, "steps before the profiler's warm-up", at_least=0)
    warmup: int = _key(MISSING, "steps of the profiler's warm-up", at_least=0)
    active: int = _key(MISSING, "recorded steps", at_least=1)
    record_shapes: bool = _key(True, "record the shapes of operators' inputs")
    profile_memory: bool = _key(True, "record allocations")
    with_stack: bool = _key(True, "record Python stacks")
    repeats: int | None = _key(
        None,
        "repeats, from the first, that explain their steps: sections, loading, trace, source lines; null: all",
        at_least=1,
    )


@dataclass
class EquivalenceConfig:
    """Seeds and batch size of the comparison with the float64 reference."""

    seeds: list[int] = _key(
        lambda: [0, 1, 2], "seeds of the weights and batches that are compared with the reference", at_least=0
    )
    batch_size: int = _key(2, "samples of a compared batch", at_least=1)
    model: dict[str, Any] = _key(dict, "arguments of the model that differ there, such as a smaller width")


@dataclass
class RootConfig:
    """Everything one training needs to know."""

    seed: int = _key(0, "seed of weights and data; repeat k uses seed + k", at_least=0)
    device: str = _key("cpu", "device of the training; `scale=gpu` sets cuda", choices=("cpu", "cuda"))
    model: dict[str, Any] = _key(MISSING, "a `_target_` with its arguments")
    loss: dict[str, Any] = _key(MISSING, "a `_target_` with its arguments")
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: dict[str, Any] = _key(MISSING, "a `_target_` with its arguments and `_partial_: true`")
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    step: StepConfig = field(default_factory=StepConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    equivalence: EquivalenceConfig = field(default_factory=EquivalenceConfig)
    python_path: list[str] = _key(list, "folders with code of your own, relative to the working directory")


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
        return f" of at least {low:g}" if high == _MOST else f" of at least {low:g} and at most {high:g}"

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
