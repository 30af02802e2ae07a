"""Estimates a step on any GPU from its operators: its time, what limits it, and whether its memory suffices."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from steptrace.documents.estimate import (
    COMPILED,
    LEAST_COVERED,
    SYNC,
    UNCOMPILED,
    Assumed,
    Band,
    ClassWork,
    CompiledEstimate,
    Estimate,
    Limit,
    LineLaunches,
    NotEstimated,
    PairedDifference,
    Uncovered,
    WithoutTime,
)
from steptrace.estimate.collectives import collective_of, collective_seconds
from steptrace.estimate.compiled import compiled_items, compiled_peak
from steptrace.estimate.constants import Constants, shipped
from steptrace.estimate.figures import band_ms, band_percent, four_digits, rounded_band
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.kernel_classes import (
    COLLECTIVE,
    CUSTOM,
    DECLARED,
    HOST_COPY,
    NEVER_MEASURED,
    OWN_KERNEL,
    WITHOUT_RULE,
    is_convolution,
)
from steptrace.estimate.queue import (
    Collective,
    CopyBeside,
    DrawnTimes,
    GraphLaunch,
    Item,
    Sync,
    simulate,
    stream_wait_of,
    with_joins,
)
from steptrace.estimate.tiles import effort
from steptrace.estimate.times import Draws, assumed_shares, band, ideal_seconds, kernel_seconds, normal
from steptrace.estimate.work import Kernel, kernels_of, on_gpu

if TYPE_CHECKING:  # a program that asks for its own estimate has no msgspec
    from steptrace.documents.prediction import PredictedStep
from steptrace.estimate.differences import difference
from steptrace.estimate.drawn import FollowedStep, LaunchedKernel, StepDraws, Work
from steptrace.estimate.room import fits, largest_batch

#: Syncs, or collectives, limit a step if waiting for them takes at least this share of it.
_MATTERS: Final = 0.15
#: Arithmetic, or memory, limits a step if it limits at least this share of the GPU work.
_MOST: Final = 0.6
#: A limit is named only if it holds in at least this share of the draws.
_AGREE: Final = 0.8
#: What the times of classes without measurements are assumed from.
_ASSUMED: Final[Mapping[str, Assumed]] = {
    HOST_COPY: "pcie",
    OWN_KERNEL: "own_kernel",
    CUSTOM: "custom_operator",
    DECLARED: "declared_cost",
}


def estimate_step(followed: FollowedStep, gpu: Gpu, *, peaks: Mapping[int, int] | None = None) -> Estimate:
    """Estimate a step; `peaks`: peak memory in bytes by batch size, from which the largest batch follows."""
    return estimate_drawn(followed, draws_of(followed, gpu), gpu, peaks=peaks)


def draws_of(followed: FollowedStep, gpu: Gpu, constants: Constants | None = None) -> StepDraws:
    """The step in every draw."""
    constants = constants or shipped()
    launched, order, collectives = _queue(followed)
    launched = [replace(item, kernel=on_gpu(item.kernel, gpu)) for item in launched]
    kernels = [item.kernel for item in launched]
    seconds = kernel_seconds(kernels, gpu, constants)
    launches = np.array([float(kernel.host_launches) for kernel in kernels])
    per_launch = 1e-6 * constants.host_us * np.exp(constants.host_spread * normal("time per launch"))
    sent = [collective_seconds(collective, followed.devices, gpu) for collective in collectives]
    timeline = simulate(order, seconds, launches, per_launch, sent)
    steps = followed.steps // _repeats(followed)
    per_step = DrawnTimes(*(value / steps for value in vars(timeline).values()))
    return StepDraws(per_step, launched, seconds, collectives, steps)


def _repeats(followed: FollowedStep) -> int:
    """How often the queue repeats itself: the number of steps if all have the same queue, otherwise 1."""
    steps = followed.steps
    queue = followed.queue
    if steps < 2 or not queue or len(queue) % steps:
        return 1
    length = len(queue) // steps
    first = tuple(queue[:length])
    return steps if all(tuple(queue[start : start + length]) == first for start in range(0, len(queue), length)) else 1


def _queue(followed: FollowedStep) -> tuple[list[LaunchedKernel], list[Item | int], list[Collective]]:
    """The kernels, the queue (positions of kernels, and other items), and its collectives in order."""
    if followed.items:
        return _of_items(followed.items, followed.steps)
    launched: list[LaunchedKernel] = []
    of_calls: list[Sequence[Item | int]] = []
    for call in followed.operators:
        tf32 = followed.tf32_convolutions if is_convolution(call) else followed.tf32
        kernels = kernels_of(call, tf32=tf32)
        if any(kernel.kind == COLLECTIVE for kernel in kernels):
            collective = collective_of(call) if followed.devices > 1 else None
            of_calls.append([] if collective is None else [collective])
            continue
        if wait := stream_wait_of(call):
            of_calls.append([wait])
            continue
        places = range(len(launched), len(launched) + len(kernels))
        of_calls.append(
            [CopyBeside(place) if of.other_stream else place for place, of in zip(places, kernels, strict=True)]
        )
        launched += [LaunchedKernel(kernel, call.calls / followed.steps, call) for kernel in kernels]
    queue = followed.queue or _without_order(followed)
    queue = queue[: len(queue) // _repeats(followed)]
    entries: Iterator[tuple[Sequence[Item | int], bool]] = (
        ((Sync(),), True)
        if position == SYNC
        else (of_calls[position], followed.operators[position].phase == "backward")
        for position in queue
    )
    order = list(with_joins(entries))
    return launched, order, [item for item in order if isinstance(item, Collective)]


def _without_order(followed: FollowedStep) -> list[int]:
    """A queue for a step whose order is not known: all calls, then all syncs."""
    queue = [place for place, call in enumerate(followed.operators) for _ in range(call.calls)]
    return queue + [SYNC] * math.ceil(followed.syncs * followed.steps)


def _of_items(items: Sequence[Item], steps: int) -> tuple[list[LaunchedKernel], list[Item | int], list[Collective]]:
    """The same as `_queue`, from `FollowedStep.items`; a graph's kernels follow its launch."""
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
            place = places.setdefault(kernel, len(places))
            order.append(CopyBeside(place) if kernel.other_stream else place)
    launched = [LaunchedKernel(kernel, counts[kernel] / steps, None) for kernel in places]
    return launched, order, [item for item in items if isinstance(item, Collective)]


def estimate_drawn(
    followed: FollowedStep, drawn: StepDraws, gpu: Gpu, *, peaks: Mapping[int, int] | None = None
) -> Estimate:
    """The estimate of a step from its draws; `peaks`: see `estimate_step`."""
    timeline = drawn.timeline
    launched = drawn.launched
    middles = np.median(drawn.seconds, axis=1) if len(launched) else np.zeros(0)
    works = [
        Work(item, float(middle * item.calls), _why_uncovered(item.kernel, gpu))
        for item, middle in zip(launched, middles, strict=True)
    ]
    kernels = [work for work in works if work.launched.kernel.kind != HOST_COPY]
    of_kernels = _total(kernels)
    covered = _total(work for work in kernels if work.why is None) / of_kernels if of_kernels else 0.0
    tested = [work for work in kernels if work.why is None and _tested(work.launched.kernel, gpu)]
    enough = covered >= LEAST_COVERED
    step = timeline.step
    alone = followed.devices == 1
    peak_memory = followed.peak_memory_bytes
    estimate = Estimate(
        gpu=gpu.name,
        batch=followed.batch,
        step_ms=band_ms(step) if enough else None,
        gpu_ms=band_ms(timeline.gpu) if enough else None,
        host_ms=band_ms(timeline.host) if launched else None,
        # Copies beside kernels count as if the GPU were not busy otherwise.
        gpu_busy_pct=band_percent(np.minimum(timeline.gpu / step, 1.0)) if enough else None,
        limited_by=_limit(timeline, works, gpu) if enough else None,
        launches=sum(item.calls * item.kernel.host_launches for item in launched) + _other_launches(followed, drawn),
        syncs=followed.syncs,
        peak_memory_bytes=peak_memory,
        fits=None if peak_memory is None else fits(peak_memory, gpu),
        largest_batch=largest_batch(peaks or {}, gpu),
        covered_pct=four_digits(100 * covered),
        tested_pct=four_digits(100 * _total(tested) / of_kernels) if of_kernels else None,
        without_time=None if enough else _without_time(works),
        not_estimated=tuple(_listed(works, gpu, lambda work: work.why)),
        assumed=tuple(_listed(works, gpu, lambda work: _ASSUMED.get(work.launched.kernel.kind))),
        lines=_lines(launched, timeline.host),
        samples_per_s=_rate(followed, step) if enough else None,
        mfu_pct=_mfu(launched, gpu, step) if enough else None,
        work=tuple(_classes(works, gpu)),
        devices=followed.devices,
        communication_ms=None if alone else band_ms(timeline.communication),
        exposed_ms=band_ms(timeline.exposed) if enough and not alone else None,
        blocked_ms=band_ms(timeline.blocked) if enough else None,
        communication_bytes=None if alone else sum(collective.bytes for collective in drawn.collectives) / drawn.steps,
    )
    return _compiled(estimate, dict.fromkeys(followed.compiled)) if followed.compiled else estimate


def estimate_variants(
    followed: Mapping[str, FollowedStep],
    baselines: Mapping[str, str],
    gpu: Gpu,
    *,
    peaks: Mapping[str, Mapping[int, int]] | None = None,
    predictions: "Mapping[str, PredictedStep] | None" = None,
) -> dict[str, Estimate]:
    """The estimates of variants on one GPU, each with its paired differences to its baseline and to the fastest one.

    Args:
        followed: the step of each variant, by name.
        baselines: the name of each variant's baseline.
        gpu: the GPU to estimate for.
        peaks: by variant, see `estimate_step`.
        predictions: the prediction of each variant, for the effect of compiling.
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

    of_code = {
        name: with_compiled(prediction, drawn[name], alone[name], gpu)
        for name, prediction in (predictions or {}).items()
        if name in alone
    }
    return {
        name: replace(estimate, difference=compared(name, baselines.get(name)), behind=compared(name, fastest))
        for name, estimate in (alone | of_code).items()
    }


def _why_uncovered(kernel: Kernel, gpu: Gpu) -> Uncovered | None:
    if kernel.kind in WITHOUT_RULE:
        # A kernel that moves so little data that it takes the minimum time needs no rule.
        if kernel.bytes / (0.1 * gpu.bandwidth) < 2e-6 * kernel.launches:
            return None
        return "no_measurements"
    return "no_peak" if kernel.flop and gpu.flops(kernel.arithmetic) is None else None


def _other_launches(followed: FollowedStep, drawn: StepDraws) -> float:
    """Launches of collectives and graphs per step."""
    if followed.items:
        other_items = len(drawn.collectives) + sum(isinstance(item, GraphLaunch) for item in followed.items)
        return other_items / followed.steps
    return (
        sum(call.calls for call in followed.operators for kernel in kernels_of(call) if kernel.kind == COLLECTIVE)
        / followed.steps
    )


def _rate(followed: FollowedStep, step: Draws) -> Band | None:
    return None if followed.batch is None else rounded_band(band(followed.batch * followed.devices / step))


def _mfu(launched: Sequence[LaunchedKernel], gpu: Gpu, step: Draws) -> Band | None:
    """Model FLOP utilisation: the FLOP per second of all operators over the GPU's peak in the most used arithmetic."""
    by_arithmetic: dict[str, float] = defaultdict(float)
    counted: set[int] = set()
    for item in launched:
        if item.kernel.flop and (item.call is None or id(item.call) not in counted):
            counted.add(id(item.call))
            flop = item.kernel.flop if item.call is None else item.call.flop
            if item.kernel.kind == DECLARED and (item.call is None or not item.call.flop):
                continue  # its arithmetic is declared for its time, and need not be the model's
            by_arithmetic[item.kernel.arithmetic] += flop * item.calls
    if not by_arithmetic:
        return None
    peak = gpu.flops(max(by_arithmetic, key=lambda arithmetic: by_arithmetic[arithmetic]))
    return None if peak is None else band_percent(sum(by_arithmetic.values()) / step / peak)


def _classes(works: Sequence[Work], gpu: Gpu) -> Iterable[ClassWork]:
    """The work of each class, the largest first."""
    of_classes: dict[tuple[str, str], list[Work]] = defaultdict(list)
    for work in works:
        of_classes[work.launched.kernel.kind, work.launched.kernel.format].append(work)
    total = _total(works)
    for (kind, format_), same in sorted(of_classes.items(), key=lambda item: -_total(item[1])):
        yield ClassWork(
            kind=kind,
            format=format_,
            flop=four_digits(sum(work.launched.calls * work.launched.kernel.flop for work in same)),
            bytes=four_digits(sum(work.launched.calls * work.launched.kernel.bytes for work in same)),
            launches=four_digits(sum(work.launched.calls * work.launched.kernel.launches for work in same)),
            share_pct=four_digits(100 * _total(same) / total) if total else 0.0,
            tested=all(_tested(work.launched.kernel, gpu) for work in same),
            varies=kind != HOST_COPY and shipped().efficiency_of(kind, format_, gpu).varies,
        )


def _tested(kernel: Kernel, gpu: Gpu) -> bool:
    """Whether estimates of its class and format were compared with published measurements."""
    without = kernel.kind == HOST_COPY or kernel.kind in NEVER_MEASURED
    return not without and shipped().efficiency_for(kernel, gpu).tested


def _limit(timeline: DrawnTimes, works: Sequence[Work], gpu: Gpu) -> Limit:
    """What limits the step in most draws; `undecided` if that differs between draws."""
    longer = np.maximum(timeline.gpu, timeline.host)
    exposed = timeline.exposed / timeline.step >= _MATTERS
    waiting = (timeline.step - longer - timeline.exposed) / timeline.step >= _MATTERS
    launching = timeline.host > timeline.gpu
    kernels = ~exposed & ~waiting & ~launching
    votes: dict[Limit, Any] = {
        "communication": exposed,
        "syncs": ~exposed & waiting,
        "launches": ~exposed & ~waiting & launching,
        **{what: kernels & (part >= _MOST) for what, part in _bounds(works, gpu).items()},
    }
    return next((what for what, votes_of in votes.items() if np.mean(votes_of) >= _AGREE), "undecided")


def _bounds(works: Sequence[Work], gpu: Gpu) -> dict[Limit, float]:
    """Shares of the GPU work in kernels limited by arithmetic, and in kernels limited by memory."""
    shares: dict[Limit, float] = {"arithmetic": 0.0, "memory": 0.0}
    total = _total(works)
    for work in works:
        if work.launched.kernel.kind == HOST_COPY:
            continue
        efficiency = shipped().efficiency_for(work.launched.kernel, gpu)
        by_flop, by_bytes = ideal_seconds(work.launched.kernel, gpu)
        by_flop, by_bytes = (
            by_flop * effort(work.launched.kernel, gpu, shipped().attention) / efficiency.arithmetic,
            by_bytes / efficiency.memory,
        )
        if max(by_flop, by_bytes) > 1e-6 * efficiency.floor_us * work.launched.kernel.launches:
            shares["arithmetic" if by_flop > by_bytes else "memory"] += work.seconds / total
    return shares


def _compiled(uncompiled: Estimate, places: Iterable[tuple[str | None, int | None]]) -> Estimate:
    """The estimate of a step with compiled code that is not known; `places`: its calls of torch.compile."""
    calls = [
        NotEstimated(name=COMPILED, code="unknown_kernels", share_pct=100, calls=1, file=file, line=line)
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
        without_time="compiled_code",
        not_estimated=(*calls, *uncompiled.not_estimated),
        uncompiled_ms=uncompiled.step_ms,
        lines=(),
        samples_per_s=None,
        mfu_pct=None,
        exposed_ms=None,
        blocked_ms=None,
    )


def _lines(launched: Sequence[LaunchedKernel], host: Draws) -> tuple[LineLaunches, ...]:
    of_lines: dict[tuple[str, int], float] = defaultdict(float)
    for item in launched:
        if item.call is not None and item.call.file is not None and item.call.line is not None:
            of_lines[item.call.file, item.call.line] += item.calls * item.kernel.launches
    total = sum(item.calls * item.kernel.launches for item in launched)
    low, high = band(host)
    return tuple(
        LineLaunches(
            file=file,
            line=line,
            launches=count,
            host_ms=(four_digits(1e3 * low * count / total), four_digits(1e3 * high * count / total)),
        )
        for (file, line), count in sorted(of_lines.items(), key=lambda item: -item[1])
    )


def _listed(
    works: Sequence[Work], gpu: Gpu, code: Callable[[Work], Uncovered | Assumed | None]
) -> Iterable[NotEstimated]:
    """The operators for which `code` returns one, grouped by code, name and line, the most GPU work first."""
    total = _total(works)
    of_lines: dict[tuple[Any, ...], list[Work]] = defaultdict(list)
    for work in works:
        why = code(work)
        if why is not None:
            call = work.launched.call
            where = (work.launched.kernel.kind, None, None) if call is None else (call.name, call.file, call.line)
            of_lines[why, *where].append(work)
    for (why, name, file, line), same in sorted(of_lines.items(), key=lambda item: -_total(item[1])):
        arithmetic = bandwidth = None
        if why in _ASSUMED.values():
            arithmetic, bandwidth = map(_assumed_percent, assumed_shares(same[0].launched.kernel, gpu, shipped()))
        yield NotEstimated(
            name=name,
            code=why,
            share_pct=four_digits(100 * _total(same) / total),
            calls=sum(work.launched.calls for work in same),
            file=file,
            line=line,
            arithmetic_pct=arithmetic if why == "declared_cost" else None,
            bandwidth_pct=bandwidth,
        )


def _assumed_percent(shares: Draws) -> Band:
    return rounded_band(band(100 * shares))


def _total(works: Iterable[Work]) -> float:
    return sum(work.seconds for work in works)


def _without_time(works: Sequence[Work]) -> WithoutTime:
    """Why a step whose work is not covered has no time."""
    if not works:
        return "nothing_ran"
    if all(work.launched.kernel.kind == HOST_COPY for work in works):
        return "only_copies"
    return "too_little_covered"


def followed_step(prediction: "PredictedStep", *, compiled: bool | None = None) -> FollowedStep:
    """The step of a prediction, to be estimated.

    `compiled`: whether compiled code replaces its operators; None: only if the program itself compiles.
    """
    of_code = prediction.followed.compiled
    is_asked = of_code is not None and of_code.is_asked
    items = compiled_items(prediction) if compiled or (compiled is None and not is_asked) else ()
    return FollowedStep(
        operators=prediction.followed.operator_calls,
        steps=prediction.followed.steps,
        syncs=prediction.syncs_per_step,
        queue=() if items else prediction.followed.queue,
        uncompiled_queue=prediction.followed.queue if items else (),
        batch=prediction.batch_size,
        peak_memory_bytes=compiled_peak(prediction) if items else prediction.peak_memory_bytes,
        tf32=prediction.tf32,
        tf32_convolutions=prediction.tf32_convolutions,
        compiled=[(place.file, place.line) for place in prediction.unknown if place.op == COMPILED and not items],
        devices=max(prediction.devices, len(prediction.by_rank)),
        items=items,
    )


def uncompiled(followed: FollowedStep) -> FollowedStep:
    """The same step without torch.compile."""
    return replace(followed, items=(), queue=followed.uncompiled_queue) if followed.items else followed


def estimate_prediction(prediction: "PredictedStep", gpu: Gpu, *, peaks: Mapping[int, int] | None = None) -> Estimate:
    """Estimate a prediction's step; `peaks`: see `estimate_step`."""
    followed = followed_step(prediction)
    drawn = draws_of(followed, gpu)
    return with_compiled(prediction, drawn, estimate_drawn(followed, drawn, gpu, peaks=peaks), gpu)


def with_compiled(prediction: "PredictedStep", drawn: StepDraws, estimate: Estimate, gpu: Gpu) -> Estimate:
    """The estimate with the effect of torch.compile, if the program compiles or `--compile` asks for it.

    Args:
        prediction: the prediction of the step.
        drawn: the draws of `estimate`.
        estimate: the estimate of the step.
        gpu: the GPU to estimate for.
    """
    code = prediction.followed.compiled
    if code is None:
        return estimate
    other = followed_step(prediction, compiled=True)
    if not other.items:
        if not code.fused_queue:
            return estimate
        fused = draws_of(replace(other, queue=code.fused_queue, compiled=()), gpu)
        upper = estimate.step_ms if code.is_asked else estimate.uncompiled_ms
        return replace(estimate, uncompiled_ms=upper, fused_ms=band_ms(fused.timeline.step))
    eager, compiled = draws_of(uncompiled(other), gpu), drawn
    if code.is_asked:
        eager, compiled = drawn, draws_of(other, gpu)
    alone = estimate if not code.is_asked else estimate_drawn(other, compiled, gpu)
    if alone.step_ms is None or alone.gpu_ms is None or alone.launches is None:
        return estimate
    return replace(
        estimate,
        uncompiled_ms=band_ms(eager.timeline.step),
        compiled=CompiledEstimate(
            graphs=sum(compiled_code.graphs for compiled_code in code.codes),
            step_ms=alone.step_ms,
            gpu_ms=alone.gpu_ms,
            launches=alone.launches,
            launches_uncompiled=sum(item.calls * item.kernel.host_launches for item in eager.launched)
            + _other_launches(uncompiled(other), eager),
            peak_memory_bytes=other.peak_memory_bytes,
            difference=difference(compiled, eager, UNCOMPILED),
        ),
    )
