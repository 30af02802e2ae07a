"""A step on a GPU that is not there, from its operators: its time, what limits it, and whether its memory suffices."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from steptrace.documents.estimate import (
    COMPILED,
    SYNC,
    Band,
    ClassWork,
    Estimate,
    LineLaunches,
    NotEstimated,
    OperatorCalls,
    PairedDifference,
)
from steptrace.estimate.collectives import collective_of, collective_seconds
from steptrace.estimate.constants import Constants, shipped
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.queue import Collective, GraphLaunch, Item, Join, Sync, Timeline, simulate
from steptrace.estimate.rules import COLLECTIVE, CUSTOM, HOST_COPY, WITHOUT_RULE, base_name, is_convolution
from steptrace.estimate.times import Draws, band, ideal_seconds, kernel_seconds, normal
from steptrace.estimate.work import Kernel, kernels_of
from steptrace.format import duration_ms, enumeration, place, setting, share

if TYPE_CHECKING:  # a program that asks for its own estimate has no msgspec
    from steptrace.documents.prediction import PredictedStep

#: Under this share of covered GPU work there is no step time.
LEAST_COVERED: Final = 0.9
#: Where waiting for syncs, or for collectives, takes this share of a step, they limit it.
_MATTERS: Final = 0.15
#: From this share of the GPU's work on, arithmetic or memory is what limits it.
_MOST: Final = 0.6
#: What limits a step has to do so in this share of the draws.
_AGREE: Final = 0.8
_ASSUMED: Final = "taken at about 20 to 90 % of PCIe's data sheet rate, not measured"
_REASONS: Final = {CUSTOM: "a custom operator"}
_NO_MEASUREMENTS: Final = "no measurements of such operators"
_NO_ARITHMETIC: Final = "the data sheet has no figure for its type"


@dataclass(frozen=True)
class FollowedStep:
    """What was followed of a training step.

    Attributes:
        operators: of `steps` steps together.
        steps: how many steps were followed.
        syncs: predicted, per step.
        queue: the order of all calls and syncs, see `Syncs.queue`; empty where it is not known.
        batch: samples per step, where known.
        peak_memory_bytes: of live storages, where followed.
        tf32: whether the program lets float32 products be computed in TF32.
        tf32_convolutions: the same of convolutions, for which it is PyTorch's default.
        compiled: files and lines of calls of torch.compile, whose code was followed as if it were not compiled.
        devices: GPUs that train together.
        items: what the queue holds instead of `operators`, in its order, where something else than operators is
            launched, such as the kernels of compiled code.
    """

    operators: Sequence[OperatorCalls]
    steps: int = 1
    syncs: float = 0
    queue: Sequence[int] = ()
    batch: int | None = None
    peak_memory_bytes: int | None = None
    tf32: bool = False
    tf32_convolutions: bool = True
    compiled: Sequence[tuple[str | None, int | None]] = ()
    devices: int = 1
    items: Sequence[Item] = ()


@dataclass(frozen=True)
class _Launched:
    """A kind of kernel in the step: the operator that launches it, if it is one's, and how often."""

    kernel: Kernel
    calls: float
    call: OperatorCalls | None


@dataclass(frozen=True)
class StepDraws:
    """A step on one GPU in every draw, and what it was made of; `collectives` are of so many `steps` together."""

    timeline: Timeline
    launched: Sequence[_Launched]
    seconds: Draws
    collectives: Sequence[Collective]
    steps: int


def estimate_step(followed: FollowedStep, gpu: Gpu, *, peaks: Mapping[int, int] | None = None) -> Estimate:
    """Estimate a step; `peaks`: of the same step with other batches, for the largest one."""
    return estimate_drawn(followed, draws_of(followed, gpu), gpu, peaks=peaks)


def draws_of(followed: FollowedStep, gpu: Gpu, constants: Constants | None = None) -> StepDraws:
    """The step in every draw."""
    constants = constants or shipped()
    launched, order, collectives = _queue(followed)
    kernels = [one.kernel for one in launched]
    seconds = kernel_seconds(kernels, gpu, constants)
    launches = np.array([float(kernel.host_launches) for kernel in kernels])
    per_launch = 1e-6 * constants.host_us * np.exp(constants.host_spread * normal("time per launch"))
    sent = [collective_seconds(one, followed.devices, gpu) for one in collectives]
    timeline = simulate(order, seconds, launches, per_launch, sent)
    steps = followed.steps // _repeats(followed)
    per_step = Timeline(*(value / steps for value in vars(timeline).values()))
    return StepDraws(per_step, launched, seconds, collectives, steps)


def _repeats(followed: FollowedStep) -> int:
    """How many times as long the queue of all followed steps is as the simulated one."""
    steps, queue = followed.steps, followed.queue
    if steps < 2 or not queue or len(queue) % steps:
        return 1
    length = len(queue) // steps
    first = tuple(queue[:length])
    return steps if all(tuple(queue[start : start + length]) == first for start in range(0, len(queue), length)) else 1


def _queue(followed: FollowedStep) -> tuple[list[_Launched], list[Item | int], list[Collective]]:
    """The kinds of kernels, the order in which they and all else are launched, and the collectives in that order."""
    if followed.items:
        return _of_items(followed.items)
    launched: list[_Launched] = []
    of_calls: list[list[int] | Collective] = []
    for call in followed.operators:
        tf32 = followed.tf32_convolutions if is_convolution(call) else followed.tf32
        kernels = kernels_of(call, tf32=tf32)
        if any(kernel.kind == COLLECTIVE for kernel in kernels):
            collective = collective_of(call) if followed.devices > 1 else None
            of_calls.append([] if collective is None else collective)
            continue
        of_calls.append(list(range(len(launched), len(launched) + len(kernels))))
        launched += [_Launched(kernel, call.calls / followed.steps, call) for kernel in kernels]
    order: list[Item | int] = []
    queue = followed.queue or _without_order(followed)
    queue = queue[: len(queue) // _repeats(followed)]
    waiting = False
    for position in queue:
        if position == SYNC:
            order.append(Sync())
            continue
        entry = of_calls[position]
        backward = followed.operators[position].phase == "backward"
        if waiting and not backward and not isinstance(entry, Collective):
            order.append(Join())  # the optimizer waits for the gradients of all GPUs
            waiting = False
        if isinstance(entry, Collective):
            order.append(entry)
            if backward and entry.operation != "all_gather":
                waiting = True
            else:
                order.append(Join())
        else:
            order += entry
    if waiting:
        order.append(Join())
    return launched, order, [item for item in order if isinstance(item, Collective)]


def items_of(followed: FollowedStep) -> list[Item]:
    """The queue of a followed step as items, for whoever puts others among them: `FollowedStep.items`."""
    launched, order, _ = _queue(followed)
    return [launched[item].kernel if isinstance(item, int) else item for item in order]


def _without_order(followed: FollowedStep) -> list[int]:
    """A queue of all calls, and the syncs at its end, where the order is not known."""
    queue = [place for place, call in enumerate(followed.operators) for _ in range(call.calls)]
    return queue + [SYNC] * math.ceil(followed.syncs * followed.steps)


def _of_items(items: Sequence[Item]) -> tuple[list[_Launched], list[Item | int], list[Collective]]:
    """The same of a queue that is given; a graph's kernels follow its launch."""
    counts: Counter[Kernel] = Counter()
    places: dict[Kernel, int] = {}
    order: list[Item | int] = []
    for item in items:
        kernels: Sequence[Kernel] = (item,) if isinstance(item, Kernel) else ()
        if isinstance(item, GraphLaunch):
            kernels = [replace(kernel, in_graph=True) for kernel in item.kernels]
        if not isinstance(item, Kernel):
            order.append(item)
        for kernel in kernels:
            counts[kernel] += 1
            order.append(places.setdefault(kernel, len(places)))
    launched = [_Launched(kernel, counts[kernel], None) for kernel in places]
    return launched, order, [item for item in items if isinstance(item, Collective)]


def estimate_drawn(
    followed: FollowedStep, drawn: StepDraws, gpu: Gpu, *, peaks: Mapping[int, int] | None = None
) -> Estimate:
    """The estimate of a step that was computed in every draw."""
    timeline, launched = drawn.timeline, drawn.launched
    middles = np.median(drawn.seconds, axis=1) if len(launched) else np.zeros(0)
    works = [
        _Work(one, float(middle * one.calls), _why_uncovered(one.kernel, gpu))
        for one, middle in zip(launched, middles, strict=True)
    ]
    kernels = [work for work in works if work.of.kernel.kind != HOST_COPY]
    of_kernels = _total(kernels)
    covered = _total(work for work in kernels if work.why is None) / of_kernels if of_kernels else 0.0
    tested = [work for work in kernels if work.why is None and _tested(work.of.kernel, gpu)]
    enough = covered >= LEAST_COVERED
    step = timeline.step
    alone = followed.devices == 1
    peak_memory = followed.peak_memory_bytes
    estimate = Estimate(
        gpu=gpu.name,
        batch=followed.batch,
        step_ms=_ms(step) if enough else None,
        gpu_ms=_ms(timeline.gpu) if enough else None,
        host_ms=_ms(timeline.host) if launched else None,
        gpu_busy_pct=_percent(timeline.gpu / step) if enough else None,
        limited_by=_limit(timeline, works, gpu) if enough else None,
        launches=sum(one.calls * one.kernel.host_launches for one in launched) + _other_launches(followed, drawn),
        syncs=followed.syncs,
        peak_memory_bytes=peak_memory,
        fits=None if peak_memory is None else _fits(peak_memory, gpu),
        largest_batch=largest_batch(peaks or {}, gpu),
        covered_pct=_round(100 * covered),
        tested_pct=_round(100 * _total(tested) / of_kernels) if of_kernels else None,
        reason=None if enough else _reason(works, covered),
        not_estimated=tuple(_listed(works, lambda work: work.why)),
        assumed=tuple(_listed(works, lambda work: _ASSUMED if work.of.kernel.kind == HOST_COPY else None)),
        lines=_lines(launched, timeline.host),
        samples_per_s=_rate(followed, step) if enough else None,
        mfu_pct=_mfu(launched, gpu, step) if enough else None,
        work=tuple(_classes(works, gpu)),
        devices=followed.devices,
        communication_ms=None if alone else _ms(timeline.communication),
        exposed_ms=_ms(timeline.exposed) if enough and not alone else None,
        communication_bytes=None if alone else sum(one.bytes for one in drawn.collectives) / drawn.steps,
    )
    return _compiled(estimate, dict.fromkeys(followed.compiled)) if followed.compiled else estimate


def difference(drawn: StepDraws, baseline: StepDraws, name: str) -> PairedDifference:
    """What a step saves against the baseline of this name, draw by draw."""
    saved = baseline.timeline.step - drawn.timeline.step
    return PairedDifference(
        baseline=name,
        saved_ms=_ms(saved),
        times_as_fast=_rounded(band(baseline.timeline.step / drawn.timeline.step)),
        faster_pct=_round(100 * float(np.mean(saved > 0))),
    )


def estimate_variants(
    followed: Mapping[str, FollowedStep],
    baselines: Mapping[str, str],
    gpu: Gpu,
    *,
    peaks: Mapping[str, Mapping[int, int]] | None = None,
) -> dict[str, Estimate]:
    """The estimates of variants on one GPU, each with its paired differences to its baseline and to the fastest one.

    Args:
        followed: the step of each variant that was followed.
        baselines: the baseline's name of each.
        gpu: where they would run.
        peaks: of each variant, see `estimate_step`.
    """
    drawn = {name: draws_of(step, gpu) for name, step in followed.items()}
    alone = {
        name: estimate_drawn(followed[name], draws, gpu, peaks=(peaks or {}).get(name)) for name, draws in drawn.items()
    }
    timed = [name for name, estimate in alone.items() if estimate.step_ms is not None]
    fastest = min(timed, key=lambda name: float(np.median(drawn[name].timeline.step)), default=None)

    def compared(name: str, other: str | None) -> PairedDifference | None:
        if other is None or other == name or name not in timed or other not in timed:
            return None
        return difference(drawn[name], drawn[other], other)

    return {
        name: replace(estimate, difference=compared(name, baselines.get(name)), behind=compared(name, fastest))
        for name, estimate in alone.items()
    }


@dataclass(frozen=True)
class _Work:
    """A kind of kernel, its seconds per step in the middle of the draws, and why no rule covers it."""

    of: _Launched
    seconds: float
    why: str | None


def _why_uncovered(kernel: Kernel, gpu: Gpu) -> str | None:
    if kernel.kind in WITHOUT_RULE:
        # One that moves so little that the shortest kernel is longer needs no rule.
        if kernel.kind != CUSTOM and kernel.bytes / (0.1 * gpu.bandwidth) < 2e-6 * kernel.launches:
            return None
        return _REASONS.get(kernel.kind, _NO_MEASUREMENTS)
    return _NO_ARITHMETIC if kernel.flop and gpu.flops(kernel.arithmetic) is None else None


def _other_launches(followed: FollowedStep, drawn: StepDraws) -> float:
    """Launches of collectives and graphs per step."""
    if followed.items:
        return float(len(drawn.collectives) + sum(isinstance(item, GraphLaunch) for item in followed.items))
    return (
        sum(call.calls for call in followed.operators for kernel in kernels_of(call) if kernel.kind == COLLECTIVE)
        / followed.steps
    )


def _rate(followed: FollowedStep, step: Draws) -> Band | None:
    return None if followed.batch is None else _rounded(band(followed.batch * followed.devices / step))


def _mfu(launched: Sequence[_Launched], gpu: Gpu, step: Draws) -> Band | None:
    """FLOP of the operators that multiply, over the peak of the arithmetic that most of them are in."""
    by_arithmetic: dict[str, float] = defaultdict(float)
    counted: set[int] = set()
    for one in launched:
        if one.kernel.flop and (one.call is None or id(one.call) not in counted):
            counted.add(id(one.call))
            flop = one.kernel.flop if one.call is None else one.call.flop
            by_arithmetic[one.kernel.arithmetic] += flop * one.calls
    if not by_arithmetic:
        return None
    peak = gpu.flops(max(by_arithmetic, key=lambda arithmetic: by_arithmetic[arithmetic]))
    return None if peak is None else _percent(sum(by_arithmetic.values()) / step / peak)


def _classes(works: Sequence[_Work], gpu: Gpu) -> Iterable[ClassWork]:
    """What each class does, the most work first."""
    of_classes: dict[tuple[str, str], list[_Work]] = defaultdict(list)
    for work in works:
        of_classes[work.of.kernel.kind, work.of.kernel.format].append(work)
    total = _total(works)
    for (kind, format_), same in sorted(of_classes.items(), key=lambda item: -_total(item[1])):
        yield ClassWork(
            kind=kind,
            format=format_,
            flop=_round(sum(work.of.calls * work.of.kernel.flop for work in same)),
            bytes=_round(sum(work.of.calls * work.of.kernel.bytes for work in same)),
            launches=_round(sum(work.of.calls * work.of.kernel.launches for work in same)),
            share_pct=_round(100 * _total(same) / total) if total else 0.0,
            tested=all(_tested(work.of.kernel, gpu) for work in same),
            varies=kind != HOST_COPY and shipped().of(kind, format_, gpu).varies,
        )


def _tested(kernel: Kernel, gpu: Gpu) -> bool:
    """Whether kernels of its class and format were held to published measurements."""
    without = kernel.kind == HOST_COPY or kernel.kind in WITHOUT_RULE
    return not without and shipped().of(kernel.kind, kernel.format, gpu).tested


def _limit(timeline: Timeline, works: Sequence[_Work], gpu: Gpu) -> str:
    """What limits the step in nearly all draws, or `undecided`."""
    longer = np.maximum(timeline.gpu, timeline.host)
    exposed = timeline.exposed / timeline.step >= _MATTERS
    waiting = (timeline.step - longer - timeline.exposed) / timeline.step >= _MATTERS
    launching = timeline.host > timeline.gpu
    kernels = ~exposed & ~waiting & ~launching
    votes = {
        "communication": exposed,
        "syncs": ~exposed & waiting,
        "launches": ~exposed & ~waiting & launching,
        **{what: kernels & (part >= _MOST) for what, part in _bounds(works, gpu).items()},
    }
    return next((what for what, votes_of in votes.items() if np.mean(votes_of) >= _AGREE), "undecided")


def _bounds(works: Sequence[_Work], gpu: Gpu) -> dict[str, float]:
    """Shares of the GPU's work in kernels that arithmetic limits, and memory."""
    shares = {"arithmetic": 0.0, "memory": 0.0}
    total = _total(works)
    for work in works:
        if work.of.kernel.kind == HOST_COPY:
            continue
        efficiency = shipped().of(work.of.kernel.kind, work.of.kernel.format, gpu)
        by_flop, by_bytes = ideal_seconds(work.of.kernel, gpu)
        by_flop, by_bytes = by_flop * work.of.kernel.effort / efficiency.arithmetic, by_bytes / efficiency.memory
        if max(by_flop, by_bytes) > 1e-6 * efficiency.floor_us * work.of.kernel.launches:
            shares["arithmetic" if by_flop > by_bytes else "memory"] += work.seconds / total
    return shares


def _compiled(uncompiled: Estimate, places: Iterable[tuple[str | None, int | None]]) -> Estimate:
    """The estimate of a step of which unknown parts are compiled at these places."""
    lines = [place(file, line) for file, line in places if file is not None]
    reason = f"uses torch.compile{f' at {enumeration(lines)}' if lines else ''}, whose kernels cannot be predicted"
    if uncompiled.step_ms is not None:
        reason += f"; the same code without torch.compile takes at most {duration_ms(uncompiled.step_ms[1], 2)}"
    calls = [
        NotEstimated(name=COMPILED, reason="kernels not known", share_pct=100, calls=1, file=file, line=line)
        for file, line in places
    ]
    return replace(
        uncompiled,
        step_ms=None,
        gpu_ms=None,
        host_ms=None,
        gpu_busy_pct=None,
        limited_by=None,
        launches=None,
        covered_pct=0,
        tested_pct=None,
        reason=reason,
        not_estimated=(*calls, *uncompiled.not_estimated),
        uncompiled_ms=uncompiled.step_ms,
        lines=(),
        samples_per_s=None,
        mfu_pct=None,
        exposed_ms=None,
    )


def _lines(launched: Sequence[_Launched], host: Draws) -> tuple[LineLaunches, ...]:
    of_lines: dict[tuple[str, int], float] = defaultdict(float)
    for one in launched:
        if one.call is not None and one.call.file is not None and one.call.line is not None:
            of_lines[one.call.file, one.call.line] += one.calls * one.kernel.launches
    total = sum(one.calls * one.kernel.launches for one in launched)
    low, high = band(host)
    return tuple(
        LineLaunches(
            file=file,
            line=line,
            launches=count,
            host_ms=(_round(1e3 * low * count / total), _round(1e3 * high * count / total)),
        )
        for (file, line), count in sorted(of_lines.items(), key=lambda item: -item[1])
    )


def _listed(works: Sequence[_Work], reason: Callable[[_Work], str | None]) -> Iterable[NotEstimated]:
    """The operators of each line for which there is a reason to list them, those with most of the GPU's work first."""
    total = _total(works)
    of_lines: dict[tuple[Any, ...], list[_Work]] = defaultdict(list)
    for work in works:
        why = reason(work)
        if why is not None:
            call = work.of.call
            where = (work.of.kernel.kind, None, None) if call is None else (call.name, call.file, call.line)
            of_lines[why, *where].append(work)
    for (why, name, file, line), same in sorted(of_lines.items(), key=lambda item: -_total(item[1])):
        calls = sum(work.of.calls for work in same)
        share_pct = _round(100 * _total(same) / total)
        yield NotEstimated(name=name, reason=why, share_pct=share_pct, calls=calls, file=file, line=line)


def _total(works: Iterable[_Work]) -> float:
    return sum(work.seconds for work in works)


def _reason(works: Sequence[_Work], covered: float) -> str:
    if not works:
        return "nothing ran on the virtual device"
    if all(work.of.kernel.kind == HOST_COPY for work in works):
        return "nothing but copies ran on the virtual device"
    names: dict[str, str] = {}
    for work in sorted(works, key=lambda work: -work.seconds):
        if work.why is not None:
            name = work.of.kernel.kind if work.of.call is None else base_name(work.of.call.name)
            names.setdefault(name, work.why)
    listed = ", ".join(f"{name} ({why})" for name, why in list(names.items())[:3])
    return f"{share(covered)} of the GPU work is covered, {setting(LEAST_COVERED)} are needed: {listed}"


def _ms(seconds: Draws) -> Band:
    return _rounded(band(1e3 * seconds))


def _percent(shares: Draws) -> Band:
    low, high = band(100 * shares)
    return _round(min(low, 100.0)), _round(min(high, 100.0))


def _rounded(values: Band) -> Band:
    return _round(values[0]), _round(values[1])


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def followed_step(prediction: "PredictedStep") -> FollowedStep:
    """The step of a prediction."""
    return FollowedStep(
        operators=prediction.followed.operator_calls,
        steps=prediction.followed.steps,
        syncs=prediction.syncs_per_step,
        queue=prediction.followed.queue,
        batch=prediction.batch_size,
        peak_memory_bytes=prediction.peak_memory_bytes,
        tf32=prediction.tf32,
        tf32_convolutions=prediction.tf32_convolutions,
        compiled=[(place.file, place.line) for place in prediction.unknown if place.op == COMPILED],
        devices=max(prediction.devices, len(prediction.by_rank)),
    )


def estimate_prediction(prediction: "PredictedStep", gpu: Gpu, *, peaks: Mapping[int, int] | None = None) -> Estimate:
    """Estimate a prediction's step; `peaks`: see `estimate_step`."""
    return estimate_step(followed_step(prediction), gpu, peaks=peaks)


#: Bytes left to the CUDA context and to libraries' workspaces, which no prediction sees. Fragmentation is not in it.
CONTEXT_BYTES: Final = 10**9
#: What grows by less is mostly rounding, and a line through it says nothing far away.
_LEAST_GROWTH: Final = 0.01


def _fits(peak_bytes: int, gpu: Gpu) -> bool:
    """Whether a step with this peak of live storages fits."""
    return peak_bytes <= _usable(gpu)


def largest_batch(peak_bytes: Mapping[int, int], gpu: Gpu) -> int | None:
    """The largest batch that fits, on the line through the peaks of the smallest and the largest batch followed.

    Args:
        peak_bytes: by batch.
        gpu: where it has to fit.

    Returns:
        None where fewer than two batches were followed, or the peak hardly grows with them; 0 where none fits.
    """
    if len(peak_bytes) < 2:
        return None
    low, high = min(peak_bytes), max(peak_bytes)
    per_sample = (peak_bytes[high] - peak_bytes[low]) / (high - low)
    if peak_bytes[high] < (1 + _LEAST_GROWTH) * peak_bytes[low]:
        return None
    return max(0, math.floor(low + (_usable(gpu) - peak_bytes[low]) / per_sample))


def _usable(gpu: Gpu) -> float:
    return gpu.memory_bytes - CONTEXT_BYTES
