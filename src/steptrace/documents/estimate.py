"""The operators of a training step, as a prediction records them, and what it was estimated to take on a GPU.

Plain dataclasses: a prediction, which can be asked for its estimate, runs in environments that have PyTorch alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from steptrace import format as fmt

#: The name of compiled code among what a prediction could not judge: it is followed as if it were not compiled.
COMPILED: Final = "torch.compile"
#: A sync among the positions of a prediction's `queue`.
SYNC: Final = -1
#: Names of waits between streams, which stand among the operators of a queue and launch nothing. The default stream
#: waits for copies on other streams: for all but the last `later` of those that were launched so far.
WAIT_FOR_COPIES: Final = "steptrace.wait_for_copies"
#: Later copies on other streams wait for the kernels launched so far.
COPIES_WAIT: Final = "steptrace.copies_wait"


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """A tensor without its values; `dtype` is an element's type as torch names it (`float32`, `bfloat16`, `int64`).

    A sparse tensor has a shape and no strides, and its indices and values stand behind it.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class DeclaredCost:
    """What a custom operator costs, as its library or program declares it: see `steptrace.operator_cost`.

    Attributes:
        flop: floating-point operations of one call; None if only a formula of `torch.utils.flop_counter` may say it.
        bytes: bytes that one call reads and writes; None if its tensors' bytes stand for them.
        launches: kernels that one call launches.
        arithmetic: the type that it computes in, such as `float32`; None if its tensors' type stands for it.
    """

    flop: float | None = None
    bytes: float | None = None
    launches: int = 1
    arithmetic: str | None = None


@dataclass(frozen=True, kw_only=True)
class OperatorCalls:
    """All calls of one operator on a GPU with the same tensors from the same line, over the followed steps.

    Attributes:
        name: operator with its overload, such as `aten.addmm.default`.
        inputs: GPU tensors among the arguments, lists flattened.
        outputs: GPU tensors that it returns.
        is_view: whether it only makes views and launches nothing.
        flop: floating-point operations of one call by `torch.utils.flop_counter`; 0 without a formula.
        calls: how many there were.
        phase: `data`, `forward`, `backward`, `optimizer` or `other`.
        file: the program's file, None where no line of the program is on the stack.
        line: its line.
        host: the tensor of the host that a copy is from or to, None of any other operator.
        arguments: of an operator whose launches depend on them; a tensor among them reads as True. Beside them stand
            `is_coalesced` of sparse tensors, and of indexing how many indices lie on the host (`host_indices`) and
            whether the value does (`host_value`). A copy between host and GPU has `pageable` if the host's memory is
            not pinned, and `other_stream` if it is launched on another stream than the default one.
        torch: the release of PyTorch that was followed, such as (2, 13); None if unknown, then the launches are those
            of 2.13.
        cuda: the first number of the CUDA version of that build, such as 13; None if unknown, then 13.
        cost: the declared cost of a custom operator; None without one.
        in_graph: whether a CUDA graph of the program launches it instead of the host. The first operator of each replay
            counts as one that the host launches, for the launch of the graph.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    is_view: bool
    flop: int
    calls: int
    phase: str
    file: str | None
    line: int | None
    host: TensorSpec | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    torch: tuple[int, int] | None = None
    cuda: int | None = None
    cost: DeclaredCost | None = None
    in_graph: bool = False


#: A lowest and a highest value.
Band = tuple[float, float]

#: If less than this share of the GPU work is covered by rules, no step time is given.
LEAST_COVERED: Final = 0.9
#: Why an operator's time is not known: operators like it were never measured, the GPU's data sheet has no rate for the
#: type that it computes in, or it is compiled code whose kernels are not known.
Uncovered = Literal["no_measurements", "no_peak", "unknown_kernels"]
#: What an operator's time was assumed from: the rate of PCIe, for a copy; the bytes of its tensors, for a kernel that
#: the program has written and for a custom operator; what is declared of a custom operator.
Assumed = Literal["pcie", "own_kernel", "custom_operator", "declared_cost"]
#: Why a step has no time: nothing ran on the GPU, nothing but copies did, rules cover too little of its work, or its
#: compiled code has unknown kernels.
WithoutTime = Literal["nothing_ran", "only_copies", "too_little_covered", "compiled_code"]
#: What limits a step in most draws; `undecided` where the draws do not agree.
Limit = Literal["arithmetic", "memory", "launches", "syncs", "communication", "undecided"]


@dataclass(frozen=True, kw_only=True)
class NotEstimated:
    """An operator that no rule covers, a call of torch.compile, or an operator whose time is assumed.

    Attributes:
        name: operator with its overload; `torch.compile`.
        reason: `code` and its figures in words; empty until `steptrace.words.estimate.with_reasons` fills it in.
        share_pct: its share of the estimated GPU work, copies included.
        calls: per step.
        file: the program's file, None where no line of the program called it.
        line: its line.
        code: why there is no rule, or what was assumed; None in files of earlier versions.
        arithmetic_pct: the assumed share of the peak arithmetic, where that was assumed.
        bandwidth_pct: the assumed share of the bandwidth, of a copy the bandwidth of PCIe, where that was assumed.
    """

    name: str
    reason: str = ""
    share_pct: float
    calls: float
    file: str | None
    line: int | None
    code: Uncovered | Assumed | None = None
    arithmetic_pct: Band | None = None
    bandwidth_pct: Band | None = None


@dataclass(frozen=True, kw_only=True)
class LineLaunches:
    """What a line of the program launches, forward and backward.

    Attributes:
        file: the program's file.
        line: its line.
        launches: kernels, copies and fills per step.
        host_ms: the host's time for them.
    """

    file: str
    line: int
    launches: float
    host_ms: Band


@dataclass(frozen=True, kw_only=True)
class ClassWork:
    """What kernels of one class and number format do in a step.

    Attributes:
        kind: the class, such as `product` or `batch norm backward`.
        format: number format of its arithmetic: `32`, `tf32`, `16`, `8`; `none` without arithmetic of note.
        flop: floating-point operations per step.
        bytes: read and written at least, per step.
        launches: per step.
        share_pct: of the estimated GPU work, in the middle of the draws.
        tested: whether kernels of this class and format were held to published measurements.
        varies: whether the version of PyTorch and its libraries moves them by a factor, so that their band is wide.
    """

    kind: str
    format: str
    flop: float
    bytes: float
    launches: float
    share_pct: float
    tested: bool
    varies: bool = False


@dataclass(frozen=True, kw_only=True)
class ClassSaving:
    """What kernels of one class take less in a step than in another one.

    Attributes:
        kind: the class, as `ClassWork.kind`.
        saved_ms: the other step's less this one's, with the same draws.
    """

    kind: str
    saved_ms: Band


@dataclass(frozen=True, kw_only=True)
class PartSaving:
    """What a part of an estimated step takes less than in another one, with the same draws.

    Attributes:
        part: `compute` and `copies` are work of the GPU, `idle_host` its waiting for launches, `idle_sync` what syncs
            add, `exposed_comm` kernels waiting for collectives.
        kind: the class of kernels, as `ClassWork.kind`; None of other parts, and of all kernels that are not named.
        mean_ms: mean over the draws; those of all parts add up to the difference of the means of both steps.
        saved_ms: its range.
    """

    part: str
    kind: str | None
    mean_ms: float
    saved_ms: Band


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """What a step saves against another one, computed with the same draws, so that what both share cancels.

    Attributes:
        baseline: the other one's name.
        saved_ms: the baseline's step less this one's; below 0 where this one is slower.
        times_as_fast: the baseline's step over this one's.
        faster_pct: share of the draws in which this one is faster.
        gpu_saved_ms: the baseline's GPU work less this one's.
        gpu_classes: the classes of kernels that make at least a tenth of that in the middle of the draws, the largest
            first.
        mean_ms: mean over the draws of the baseline's step, and of this one's; None in files of earlier versions.
        parts: where the difference lies: classes of kernels that make at least a tenth of it, and the other parts.
    """

    baseline: str
    saved_ms: Band
    times_as_fast: Band
    faster_pct: float
    gpu_saved_ms: Band | None = None
    gpu_classes: tuple[ClassSaving, ...] = ()
    mean_ms: tuple[float, float] | None = None
    parts: tuple[PartSaving, ...] = ()

    @property
    def is_faster(self) -> bool:
        """Whether it is estimated to be faster: the range does not hold 0."""
        return self.saved_ms[0] > 0

    @property
    def is_slower(self) -> bool:
        """Whether it is estimated to be slower."""
        return self.saved_ms[1] < 0


#: The name of the same step without torch.compile, as the baseline of a difference.
UNCOMPILED: Final = "uncompiled"


@dataclass(frozen=True, kw_only=True)
class CompiledEstimate:
    """What compiling changes in a step that has compiled code.

    Attributes:
        graphs: that Dynamo makes of the code.
        step_ms: of the step with compiled code.
        gpu_ms: the same of the GPU's work.
        launches: kernels, copies and fills that the host launches per step with compiled code.
        launches_uncompiled: the same without torch.compile.
        peak_memory_bytes: about: the peak of the uncompiled step, less what compiled code keeps less for its backward
            pass; None where that is not known.
        difference: to the same step without torch.compile.
    """

    graphs: int
    launches_uncompiled: float
    difference: PairedDifference
    step_ms: Band | None = None
    gpu_ms: Band | None = None
    launches: float | None = None
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A step on one GPU; what depends on GPU work is None where under 90 % of its kernels' work is covered by rules.

    A band is the 5 to 95 % range over the draws. Kernels of compiled code are not known: where a step has some, only
    its memory and `uncompiled_ms` are given.

    Attributes:
        gpu: its name.
        batch: samples per step, where known.
        step_ms: the queue of launches, kernels, syncs and collectives in their order.
        gpu_ms: work of the GPU, without collectives.
        host_ms: the host's launches, without data loading.
        gpu_busy_pct: GPU work / step.
        limited_by: `arithmetic`, `memory`, `launches`, `syncs`, `communication` or `undecided`.
        launches: kernels, copies and fills that the host launches per step; None with compiled code.
        syncs: predicted, per step.
        peak_memory_bytes: peak of live storages as the caching allocator rounds them, without libraries' workspaces;
            of compiled code as if it were not compiled.
        fits: whether that fits.
        largest_batch: that fits; None unless two batches were followed.
        covered_pct: share of the estimated work of GPU kernels, without copies, that a rule covers.
        tested_pct: share of that work whose class and format were held to published measurements.
        reason: `without_time` and its figures in words; None if there is a step time, and until
            `steptrace.words.estimate.with_reasons` fills it in.
        not_estimated: operators that no rule covers.
        assumed: operators whose times are assumed: copies between host and GPU, which count as GPU work, and what the
            program or a library has written itself.
        samples_per_s: samples of all GPUs, where the batch is known.
        mfu_pct: FLOP of products, convolutions and attention per second / the peak of the format that most are in.
        work: what each class of kernels does, the most GPU work first.
        devices: GPUs that train together.
        communication_ms: collectives; None with one GPU.
        exposed_ms: kernels waiting for collectives.
        blocked_ms: the host's waiting at syncs, which is not their cost: the GPU works meanwhile. None in files of
            earlier versions.
        communication_bytes: that a GPU sends and receives in collectives per step.
        difference: to the baseline of a study; None of the baseline itself.
        behind: to the variant whose step is the shortest in the middle of the draws; None of that one.
        uncompiled_ms: of a step with compiled code the step without torch.compile; its high end is an upper bound.
        fused_ms: of a step with compiled code whose kernels are not known the step as if nothing but products,
            convolutions and attention were left of it; its low end is a lower bound.
        lines: those that launch something, most launches first; none with compiled code.
        compiled: what compiling changes; None without compiled code, or where its kernels are not known. If the
            program compiles nothing and the question was what compiling would give, all other figures are of the
            program as it is.
        without_time: why there is no step time; None if there is one, and in files of earlier versions.
    """

    gpu: str
    batch: int | None
    step_ms: Band | None
    gpu_ms: Band | None
    host_ms: Band | None
    gpu_busy_pct: Band | None
    limited_by: Limit | None
    launches: float | None
    syncs: float
    peak_memory_bytes: int | None
    fits: bool | None
    largest_batch: int | None
    covered_pct: float
    reason: str | None = None
    not_estimated: tuple[NotEstimated, ...]
    assumed: tuple[NotEstimated, ...] = ()
    uncompiled_ms: Band | None = None
    fused_ms: Band | None = None
    lines: tuple[LineLaunches, ...] = ()
    tested_pct: float | None = None
    samples_per_s: Band | None = None
    mfu_pct: Band | None = None
    work: tuple[ClassWork, ...] = ()
    devices: int = 1
    communication_ms: Band | None = None
    exposed_ms: Band | None = None
    blocked_ms: Band | None = None
    communication_bytes: float | None = None
    difference: PairedDifference | None = None
    behind: PairedDifference | None = None
    compiled: CompiledEstimate | None = None
    without_time: WithoutTime | None = None

    def __str__(self) -> str:
        """The GPU, its band of step times, what limits them, launches, syncs and memory, on one line."""
        if self.step_ms is not None:
            step = fmt.band_ms(*self.step_ms)
        else:
            step = "not estimated" if self.reason is None else f"not estimated: {self.reason}"
        parts = [f"{self.gpu}: step {step}"]
        if self.gpu_ms is not None:
            parts.append(f"GPU work {fmt.band_ms(*self.gpu_ms)}")
        if self.gpu_busy_pct is not None:
            parts.append(f"GPU busy {fmt.band_percent(*self.gpu_busy_pct)}")
        if self.limited_by is not None:
            parts.append(f"limited by {self.limited_by}")
        if self.launches is not None:
            parts.append(
                fmt.plural(self.launches, "launch") if self.launches == 1 else f"{fmt.count(self.launches)} launches"
            )
        parts.append(fmt.plural(self.syncs, "sync"))
        if self.peak_memory_bytes is not None:
            parts.append(f"peak memory {fmt.size_bytes(self.peak_memory_bytes)}")
        return ", ".join(parts)

    @property
    def is_compiled(self) -> bool:
        """Whether the step has compiled code."""
        return any(missing.name == COMPILED for missing in self.not_estimated)
