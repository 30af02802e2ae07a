"""A step on a GPU that is not there, from its operators: its time, what limits it, and whether its memory suffices."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from steptrace.documents.estimate import COMPILED, Band, Estimate, LineLaunches, NotEstimated, OperatorCalls, TensorSpec
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.rules import COLLECTIVE, HOST_COPY, base_name, is_convolution
from steptrace.estimate.work import Work, work_of
from steptrace.format import duration_ms, enumeration, place, setting, share

#: Seconds of the host per launch without a profiler, lowest and highest.
HOST_PER_LAUNCH: Final = (5e-6, 30e-6)
#: Under this share of covered GPU work there is no step time.
LEAST_COVERED: Final = 0.9
#: From this share of the step at every point of the bands on, syncs limit it.
_SYNCS_MATTER: Final = 0.15
#: From this share of the GPU's work on, arithmetic or memory is what limits it.
_MOST: Final = 0.6
_ASSUMED: Final = "taken at 20 to 85 % of PCIe's data sheet rate, not measured"


@dataclass(frozen=True)
class FollowedStep:
    """What was followed of a training step.

    Attributes:
        operators: of `steps` steps together.
        steps: how many steps were followed.
        syncs: predicted, per step.
        batch: samples per step, where known.
        peak_memory_bytes: of live storages, where followed.
        tf32: whether the program lets float32 products be computed in TF32.
        tf32_convolutions: the same of convolutions, for which it is PyTorch's default.
        compiled: files and lines of calls of torch.compile, whose code was followed as if it were not compiled.
    """

    operators: Sequence[OperatorCalls]
    steps: int = 1
    syncs: float = 0
    batch: int | None = None
    peak_memory_bytes: int | None = None
    tf32: bool = False
    tf32_convolutions: bool = True
    compiled: Sequence[tuple[str | None, int | None]] = ()


def estimate_step(followed: FollowedStep, gpu: Gpu, *, peaks: Mapping[int, int] | None = None) -> Estimate:
    """Estimate a step without its collectives; `peaks`: of the same step with other batches, for the largest one."""
    steps, syncs, peak_memory_bytes = followed.steps, followed.syncs, followed.peak_memory_bytes
    of_calls = (
        work_of(call, gpu, tf32=followed.tf32_convolutions if is_convolution(call) else followed.tf32)
        for call in followed.operators
    )
    launched = [work for work in of_calls if work is not None]
    works = [work for work in launched if work.rule is not COLLECTIVE]  # its time depends on the link and other ranks
    gpu_s = _sum(works, steps)
    count = sum(work.launches * work.call.calls for work in launched) / steps
    host_s = _host_s(count)
    total = _middle(works)
    kernels = [work for work in works if work.rule is not HOST_COPY]
    of_kernels = _middle(kernels)
    covered = _middle(work for work in kernels if work.rule.not_covered is None) / of_kernels if kernels else 0.0
    enough = covered >= LEAST_COVERED
    step_s, busy = step_time(gpu_s, host_s, syncs=syncs)
    estimate = Estimate(
        gpu=gpu.name,
        batch=followed.batch,
        step_ms=_ms(step_s) if enough else None,
        gpu_ms=_ms(gpu_s) if enough else None,
        host_ms=_ms(host_s) if launched else None,
        gpu_busy_pct=(_round(100 * busy[0]), _round(100 * busy[1])) if enough else None,
        limited_by=limit(works, gpu_s, host_s, syncs=syncs) if enough else None,
        launches=count,
        syncs=syncs,
        peak_memory_bytes=peak_memory_bytes,
        fits=None if peak_memory_bytes is None else _fits(peak_memory_bytes, gpu),
        largest_batch=largest_batch(peaks or {}, gpu),
        covered_pct=_round(100 * covered),
        reason=None if enough else _reason(works, covered),
        not_estimated=tuple(_listed(works, lambda work: work.rule.not_covered, total, steps)),
        assumed=tuple(_listed(works, lambda work: _ASSUMED if work.rule is HOST_COPY else None, total, steps)),
        lines=_lines(launched, steps),
    )
    return _compiled(estimate, dict.fromkeys(followed.compiled)) if followed.compiled else estimate


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
        reason=reason,
        not_estimated=(*calls, *uncompiled.not_estimated),
        uncompiled_ms=uncompiled.step_ms,
        lines=(),
    )


def step_time(gpu_s: Band, host_s: Band, *, syncs: float) -> tuple[Band, Band]:
    """The step in seconds and the share of it that the GPU works, each lowest and highest.

    It takes at least the longer of the two; each sync can make one of them wait for the other, at most for all of it.
    """
    low = max(gpu_s[0], host_s[0])
    high = gpu_s[1] + host_s[1] if syncs else max(gpu_s[1], host_s[1])
    if not low:
        return (low, high), (0.0, 0.0)
    slowest = gpu_s[0] + host_s[1] if syncs else max(gpu_s[0], host_s[1])
    return (low, high), (gpu_s[0] / slowest, min(1.0, gpu_s[1] / max(gpu_s[1], host_s[0])))


def limit(works: Sequence[Work], gpu_s: Band, host_s: Band, *, syncs: float) -> str:
    """What limits the step: `arithmetic`, `memory`, `launches`, `syncs`, or `undecided` where the bands overlap."""
    if syncs and min(gpu_s[0], host_s[0]) >= _SYNCS_MATTER * max(gpu_s[1], host_s[1]):
        return "syncs"
    if host_s[0] > gpu_s[1]:
        return "launches"
    if gpu_s[0] <= host_s[1]:
        return "undecided"
    total = _middle(works)
    for what in ("arithmetic", "memory"):
        if _middle(work for work in works if work.limited_by == what) >= _MOST * total:
            return what
    return "undecided"


def _sum(works: Sequence[Work], steps: int) -> Band:
    """Seconds of all kernels of a step, lowest and highest.

    Every class is at the end of its typical band at once: a GPU can be fast or slow at all of them. How far a kernel of
    one shape lies from that is independent of other shapes, so those distances add up as the root of their squares.
    """
    low, high = (math.fsum(work.call.calls * work.typical[end] for work in works) for end in (0, 1))
    apart: dict[object, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for work in works:
        of_shape = apart[base_name(work.call.name), work.call.inputs]
        for end in (0, 1):
            of_shape[end] += work.call.calls * (work.time[end] - work.typical[end])
    below, above = (math.hypot(*(distances[end] for distances in apart.values())) for end in (0, 1))
    shortest = math.fsum(work.call.calls * work.time[0] for work in works)
    return max(shortest, low - below) / steps, (high + above) / steps


def _host_s(launches: float) -> Band:
    return launches * HOST_PER_LAUNCH[0], launches * HOST_PER_LAUNCH[1]


def _lines(works: Sequence[Work], steps: int) -> tuple[LineLaunches, ...]:
    of_lines: dict[tuple[str, int], float] = defaultdict(float)
    for work in works:
        if work.call.file is not None and work.call.line is not None:
            of_lines[work.call.file, work.call.line] += work.launches * work.call.calls / steps
    return tuple(
        LineLaunches(file=file, line=line, launches=count, host_ms=_ms(_host_s(count)))
        for (file, line), count in sorted(of_lines.items(), key=lambda item: -item[1])
    )


def _listed(
    works: Sequence[Work], reason: Callable[[Work], str | None], total: float, steps: int
) -> Iterable[NotEstimated]:
    """The operators of each line for which there is a reason to list them, those with most of the GPU's work first."""
    of_lines: dict[tuple[Any, ...], list[Work]] = defaultdict(list)
    for work in works:
        why = reason(work)
        if why is not None:
            of_lines[work.call.name, why, work.call.file, work.call.line].append(work)
    for (name, why, file, line), same in sorted(of_lines.items(), key=lambda item: -_middle(item[1])):
        calls = sum(work.call.calls for work in same) / steps
        yield NotEstimated(
            name=name, reason=why, share_pct=_round(100 * _middle(same) / total), calls=calls, file=file, line=line
        )


def _middle(works: Iterable[Work]) -> float:
    return sum(work.middle for work in works)


def _reason(works: Sequence[Work], covered: float) -> str:
    if not works:
        return "nothing ran on the virtual device"
    if all(work.rule is HOST_COPY for work in works):
        return "nothing but copies ran on the virtual device"
    names: dict[str, str] = {}
    for work in sorted(works, key=lambda work: -work.middle):
        if work.rule.not_covered is not None:
            names.setdefault(base_name(work.call.name), work.rule.not_covered)
    listed = ", ".join(f"{name} ({why})" for name, why in list(names.items())[:3])
    return f"{share(covered)} of the GPU work is covered, {setting(LEAST_COVERED)} are needed: {listed}"


def _ms(band: Band) -> Band:
    return _round(1e3 * band[0]), _round(1e3 * band[1])


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def estimate_prediction(prediction: Mapping[str, Any], gpu: Gpu, *, peaks: Mapping[int, int] | None = None) -> Estimate:
    """Estimate a prediction's step; `peaks`: see `estimate_step`."""
    followed = FollowedStep(
        operators=[_calls(call) for call in prediction["operator_calls"]],
        steps=len(prediction.get("by_step") or ()) or 1,
        syncs=prediction["total"],
        batch=prediction.get("batch_size"),
        peak_memory_bytes=prediction["peak_memory_bytes"],
        tf32=prediction["tf32"],
        tf32_convolutions=prediction["tf32_convolutions"],
        compiled=[(one["file"], one["line"]) for one in prediction["unknown"] if one["op"] == COMPILED],
    )
    return estimate_step(followed, gpu, peaks=peaks)


def _calls(call: Mapping[str, Any]) -> OperatorCalls:
    of_gpu = {name: tuple(map(_tensor, call[name])) for name in ("inputs", "outputs")}
    host = call.get("host")
    return OperatorCalls(**{**call, **of_gpu, "host": host and _tensor(host)})


def _tensor(spec: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(shape=tuple(spec["shape"]), strides=tuple(spec["strides"]), dtype=spec["dtype"])


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
