"""What the page of one or more traces shows, as plain data; `build` reads it from a summary.json's content."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steptrace.errors import RecordError
from steptrace.report import format as fmt
from steptrace.report.build import GPU_PARTS, finding, site
from steptrace.report.model import Finding, Part
from steptrace.report.sites import Site


@dataclass(frozen=True)
class StepParts:
    """One profiled step: its index, its duration, and its parts on the GPU (none without GPU work)."""

    index: int
    ms: float
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class TraceView:
    """One trace. `parts` add up to the GPU's span; `sites_per_step` says what the sites' figures count for.

    `raw` is the trace's entry in summary.json, for what needs no more than being shown.
    """

    title: str
    path: str
    sha256: str | None
    rank: int | None
    device: str | None
    warnings: tuple[str, ...]
    launch_coverage: float | None
    activities: int
    span_ns: float | None
    parts: tuple[Part, ...]
    overlap_pct: float | None
    gpu_busy_pct: float | None
    sm_weighted_pct: float | None
    steps: tuple[StepParts, ...]
    idle_causes: tuple[Part, ...]
    idle_streams: tuple[Mapping[str, Any], ...]
    syncs_per_step: float | None
    sync_count: int | None
    sync_kinds: tuple[tuple[str, int], ...]
    blocked_ns: float | None
    exposed_idle_ns: float | None
    sites: tuple[Site, ...]
    sites_per_step: bool
    sections: tuple[Mapping[str, Any], ...]
    kernels: tuple[Mapping[str, Any], ...]
    operators_per_step: float | None
    kernels_per_step: float | None
    findings: tuple[Finding, ...]
    raw: Mapping[str, Any] = field(repr=False)

    @property
    def has_gpu(self) -> bool:
        """Whether the trace holds GPU work."""
        return self.activities > 0

    @property
    def step_ms(self) -> float | None:
        """Median duration of the profiled steps."""
        times = sorted(step.ms for step in self.steps)
        middle = len(times) // 2
        return None if not times else times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2


def build(summary: Mapping[str, Any]) -> tuple[TraceView, ...]:
    """The views of all traces of a summary.json, in its order.

    Raises:
        RecordError: the summary holds no traces.
    """
    traces = summary.get("traces")
    if not traces:
        raise RecordError("summary holds no traces", expected="the content of a summary.json of `steptrace analyze`")
    titles = _titles(traces)
    return tuple(_view(raw, title) for raw, title in zip(traces, titles, strict=True))


def _view(raw: Mapping[str, Any], title: str) -> TraceView:
    gpu, quality = raw.get("gpu") or {}, raw.get("quality") or {}
    idle, syncs = raw.get("idle") or {}, raw.get("syncs") or {}
    sites_per_step = syncs.get("per_step") is not None
    has_gpu = bool(gpu.get("activities"))
    return TraceView(
        title=title,
        path=str(raw.get("path") or ""),
        sha256=raw.get("sha256"),
        rank=raw.get("rank"),
        device=raw.get("device_name") or (None if raw.get("device") is None else f"GPU {raw['device']}"),
        warnings=tuple(quality.get("warnings") or ()),
        launch_coverage=quality.get("launch_coverage"),
        activities=gpu.get("activities") or 0,
        span_ns=gpu.get("span_ns"),
        parts=_parts(gpu) if has_gpu else (),
        overlap_pct=gpu.get("overlap_pct"),
        gpu_busy_pct=raw.get("gpu_busy_pct"),
        sm_weighted_pct=raw.get("sm_weighted_pct"),
        steps=tuple(
            StepParts(step["index"], step["dur_ns"] / fmt.NS_PER_MS, _parts(step) if has_gpu else ())
            for step in raw.get("steps") or ()
        ),
        idle_causes=tuple(Part(k, v / fmt.NS_PER_MS) for k, v in (idle.get("by_cause") or {}).items() if v is not None),
        idle_streams=tuple(idle.get("by_stream") or ()),
        syncs_per_step=syncs.get("per_step"),
        sync_count=syncs.get("count") if has_gpu or syncs.get("count") else None,
        sync_kinds=tuple((syncs.get("by_kind") or {}).items()),
        blocked_ns=syncs.get("blocked_ns"),
        exposed_idle_ns=syncs.get("exposed_idle_ns"),
        sites=tuple(_site(item, sites_per_step) for item in syncs.get("sites") or ()),
        sites_per_step=sites_per_step,
        sections=tuple(raw.get("sections") or ()),
        kernels=tuple(raw.get("kernels") or ()),
        operators_per_step=raw.get("operators_per_step"),
        kernels_per_step=raw.get("kernels_per_step"),
        findings=tuple(finding(item) for item in raw.get("findings") or ()),
        raw=raw,
    )


def _titles(traces: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each trace is called: its file's name, with as many folders as tell it from the others.

    Of several traces the rank, unless two say the same: then they are no ranks of one job.
    """
    paths = [Path(str(raw.get("path") or "trace")) for raw in traces]
    said = [raw["rank"] for raw in traces if raw.get("rank") is not None]
    by_rank = len(traces) > 1 and len(set(said)) == len(said)
    longest = max(len(path.parts) for path in paths)
    names = next(
        (found for n in range(1, longest) if len(set(found := _last(paths, n))) == len(paths)), _last(paths, longest)
    )
    return [
        f"Rank {raw['rank']}" if by_rank and raw.get("rank") is not None else name
        for raw, name in zip(traces, names, strict=True)
    ]


def _last(paths: Sequence[Path], count: int) -> list[str]:
    return ["/".join(path.parts[-count:]) for path in paths]


def _parts(times: Mapping[str, Any]) -> tuple[Part, ...]:
    values = [(name, times.get(f"{name}_ns")) for name in GPU_PARTS]
    return tuple(Part(name, value / fmt.NS_PER_MS) for name, value in values if value is not None)


def _site(raw: Mapping[str, Any], per_step: bool) -> Site:  # noqa: FBT001  (private, one caller)
    """A site with its figures per step, or over the whole trace where that has no steps."""
    if per_step:
        return site(raw)
    whole = {f"{name}_per_step": raw.get(name) for name in ("count", "blocked_ns", "exposed_idle_ns")}
    return site({**raw, **whole})
