"""The one root schema of a resolved configuration: each key described once, with its type, range, choices and meaning.

Hydra merges the YAML groups into `RootConfig`, so a wrong type or an unknown key is refused while composing. Ranges and
choices are checked by `steptrace.config.keys`, from the same description. What
a model, a loss, a dataset or an optimizer takes is up to its class, so those four stay open mappings with a `_target_`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from omegaconf import MISSING

#: What a number may be at most, where a key does not say less.
MOST: Final = 10**9
#: The same of processes and threads that one training starts.
_MOST_PROCESSES: Final = 4096


def _key(
    default: Any, meaning: str, *, at_least: float | None = None, at_most: float = MOST, choices: Sequence[str] = ()
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
