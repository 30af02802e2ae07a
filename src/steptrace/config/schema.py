"""The configuration of one training: each key declared once, with its type, limits, default and meaning.

Hydra composes the YAML groups over `defaults()`, and the result is read into `RootConfig`, which refuses unknown keys
and values out of their limits. The arguments of a model, loss, dataset or optimizer
depend on its class, so these keys are open mappings with a `_target_`.
"""

from typing import Annotated, Any, Final, Literal, get_type_hints

import msgspec
from msgspec import Meta

#: The largest value of a number, unless its key has a smaller limit.
MOST: Final = 10**9
_MOST_PROCESSES: Final = 4096

Count = Annotated[int, Meta(ge=0, le=MOST)]
Positive = Annotated[int, Meta(ge=1, le=MOST)]
Processes = Annotated[int, Meta(ge=1, le=_MOST_PROCESSES)]
Tolerance = Annotated[float, Meta(ge=0, le=MOST)]
Text = Annotated[str, Meta(min_length=1)]
Target = Annotated[dict[str, Any], Meta(description="a `_target_` with its arguments")]


class DataConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The dataset and the arguments of its DataLoader."""

    dataset: Target
    batch_size: Annotated[Positive, Meta(description="samples in a batch, of each rank")]
    num_workers: Annotated[
        int,
        Meta(
            ge=0, le=_MOST_PROCESSES, description="processes that load batches; with 0 the training loads them itself"
        ),
    ] = 0
    pin_memory: Annotated[bool, Meta(description="load batches into pinned host memory, where there is a GPU")] = False
    non_blocking: Annotated[bool, Meta(description="copy batches to the device without waiting for the copy")] = False
    shuffle: Annotated[bool, Meta(description="draw samples in random order")] = True
    prefetch_factor: Annotated[Positive | None, Meta(description="batches that each worker loads ahead")] = None
    persistent_workers: Annotated[bool, Meta(description="keep the workers from one epoch to the next")] = False
    device_prefetch: Annotated[
        bool, Meta(description="copy the next batch to the device on its own stream during the step")
    ] = False
    pool: Annotated[
        Positive | None, Meta(description="load this many batches before the first step and reuse them in turn")
    ] = None

    def __post_init__(self) -> None:
        if self.num_workers == 0 and (self.prefetch_factor or self.persistent_workers):
            raise ValueError(
                "with data.num_workers 0 set data.prefetch_factor=null and data.persistent_workers=false"
                f" (they are {self.prefetch_factor} and {str(self.persistent_workers).lower()})"
            )


class ToleranceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Largest relative error against the float64 reference that still counts as the same answer.

    Null: as the number formats and the sizes give it (`steptrace.equivalence.tolerance`).
    """

    loss: Annotated[Tolerance | None, Meta(description="largest relative error of the loss")] = None
    gradient: Annotated[
        Tolerance | None, Meta(description="largest relative error of its gradient by the predictions")
    ] = None


class PrecisionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number formats of a training."""

    name: Annotated[str, Meta(description="name of the number format, for tables")]
    autocast: Annotated[
        Literal["bf16", "fp16"] | None, Meta(description="number format of autocast; null for none")
    ] = None
    tf32: Annotated[bool, Meta(description="allow TF32 in float32 matrix products and convolutions")] = False
    grad_scaler: Annotated[bool, Meta(description="scale the loss (`torch.amp.GradScaler`); for fp16 only")] = False
    tolerance: ToleranceConfig = ToleranceConfig()

    def __post_init__(self) -> None:
        if self.grad_scaler and self.autocast != "fp16":
            raise ValueError("precision.grad_scaler is true without fp16 autocast: choose precision=fp16")


class StepConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form of one training step."""

    accumulate: Annotated[Positive, Meta(description="batches whose gradients are added up in one optimizer step")] = 1
    set_to_none: Annotated[bool, Meta(description="`zero_grad` frees gradients instead of filling them with zeros")] = (
        True
    )
    channels_last: Annotated[
        bool, Meta(description="store weights and images of convolutions in channels-last order")
    ] = False
    compile: Annotated[
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None,
        Meta(description="mode of torch.compile; null for eager execution"),
    ] = None
    read_loss_every: Annotated[
        Positive | None,
        Meta(description="read the loss with `.item()` at the end of every n-th step, as for a log; null: never"),
    ] = None


class DistributedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data-parallel training over `world_size` processes; a single process has no process group."""

    world_size: Annotated[Processes, Meta(description="number of data-parallel processes (ranks)")] = 1
    bucket_cap_mb: Annotated[float, Meta(ge=0.001, le=MOST, description="size of a gradient bucket, in MiB")] = 25.0
    gradient_as_bucket_view: Annotated[bool, Meta(description="gradients are views of the buckets, without a copy")] = (
        False
    )
    static_graph: Annotated[
        bool, Meta(description="tell DistributedDataParallel that the graph is the same in every step")
    ] = False
    no_sync: Annotated[bool, Meta(description="reduce gradients with the last accumulated batch only")] = True
    comm_hook: Annotated[
        Literal["bf16", "fp16"] | None, Meta(description="format in which gradients are sent; null for theirs")
    ] = None


class ScaleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many steps are run, for how long, and on how many threads."""

    name: Annotated[str, Meta(description="name of the scale, for tables")]
    warmup_steps: Annotated[Count, Meta(description="steps before the timed ones")]
    timed_steps: Annotated[Positive, Meta(description="steps that are timed, without a profiler")]
    at_most_s: Annotated[
        float,
        Meta(
            gt=0,
            le=MOST,
            description="seconds after which a phase of steps ends early, with at least five timed (three of over 3 s)",
        ),
    ] = 20.0
    section_steps: Annotated[Count, Meta(description="steps of a separate pass with a sync around each section")] = 0
    input_steps: Annotated[Count, Meta(description="steps of a separate pass that times the parts of loading")] = 0
    threads: Annotated[
        Processes | None, Meta(description="CPU threads of a process; null for as many as it is given")
    ] = None
    memory_limit_mb: Annotated[
        Positive | None,
        Meta(description="MiB that peaks are held against, if that is less than there is"),
    ] = None


class ProfileConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The profiled window, in steps, and what the profiler records in it."""

    warmup: Annotated[Count, Meta(description="steps of the profiler's warm-up")]
    active: Annotated[Positive, Meta(description="recorded steps")]
    record_shapes: Annotated[bool, Meta(description="record the shapes of operators' inputs")] = True
    profile_memory: Annotated[bool, Meta(description="record allocations")] = True
    with_stack: Annotated[bool, Meta(description="record Python stacks")] = True
    repeats: Annotated[
        Positive | None,
        Meta(
            description="repeats, from the first, that explain their steps: sections, loading, trace, source lines; "
            "null: all"
        ),
    ] = None


class EquivalenceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seeds and batch size of the comparison with the float64 reference."""

    seeds: Annotated[
        list[Count],
        Meta(min_length=1, description="seeds of the compared weights and batches; default: 0, 1, 2"),
    ] = msgspec.field(default_factory=lambda: [0, 1, 2])
    batch_size: Annotated[Positive, Meta(description="samples of a compared batch")] = 2
    model: Annotated[
        dict[str, Any], Meta(description="arguments of the model that differ there, such as a smaller width")
    ] = {}


class RootConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything one training needs to know."""

    seed: Annotated[Count, Meta(description="seed of weights and data; repeat k uses seed + k")] = 0
    device: Annotated[Literal["cpu", "cuda"], Meta(description="device of the training; `scale=gpu` sets cuda")] = "cpu"
    model: Target
    loss: Target
    data: DataConfig
    optimizer: Annotated[dict[str, Any], Meta(description="a `_target_` with its arguments and `_partial_: true`")]
    precision: PrecisionConfig
    step: StepConfig = StepConfig()
    distributed: DistributedConfig = DistributedConfig()
    scale: ScaleConfig
    profile: ProfileConfig
    equivalence: EquivalenceConfig = EquivalenceConfig()
    python_path: Annotated[
        list[str], Meta(description="folders with code of your own, relative to the working directory")
    ] = []


def defaults(section: type[msgspec.Struct] = RootConfig) -> dict[str, Any]:
    """Every key with its default, as Hydra takes it: `???` where a group has to give the value."""
    hints = get_type_hints(section)
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(section):
        if isinstance(hints[field.name], type) and issubclass(hints[field.name], msgspec.Struct):
            values[field.name] = defaults(hints[field.name])
        elif field.required:
            values[field.name] = "???"
        else:
            values[field.name] = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return values
