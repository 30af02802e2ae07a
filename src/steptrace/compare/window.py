"""What profiled windows, loader and ranks say of a variant: the first look, the wait for data, communication.

None of it decides about speed. Everything of the first look comes from rank 0's profiled windows: parts are means over
the runs, so that they still add up to the mean step; shares and counts are medians.

The wait for data is that of the unprofiled steps. Where a GPU works meanwhile it costs nothing: the profiled window
says which part of the wait had the GPU idle, and that part of the unprofiled wait counts. Without a GPU all of it does.

Communication is what ranks should tell each other, what they did, and what of it was hidden: figures of traces are
medians over the variant's runs of medians over the ranks; what a run measured of the connection itself
(communication.json) is a median over the runs too.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pandas as pd
from msgspec.structs import replace

from steptrace.analysis.input import verdict_on
from steptrace.compare.explain import median_ms, median_of
from steptrace.compare.load import Measured, Variant
from steptrace.documents.comparison import (
    CommunicationOfVariant,
    InputOfVariant,
    OverviewOfVariant,
    PlacementOfVariant,
    PrecisionOfVariant,
)
from steptrace.documents.comparison.window import LoadingParts, StragglerOfVariant, TriedMessage
from steptrace.documents.overview import Overview, Placement, TopOperator
from steptrace.documents.ranks import Ranks
from steptrace.documents.run import Communication
from steptrace.documents.summary import TraceSummary
from steptrace.errors import RecordError
from steptrace.format import NS_PER_MS
from steptrace.record import read_communication, read_rows
from steptrace.schema import INPUT_OF_RUN


def overview_figures(variant: Variant) -> dict[str, Any]:
    """`overview`, `placement` and `precision` of comparison.json, each None if no run's trace has it."""
    traces = variant.traces
    overviews = [trace.overview for trace in traces if trace.overview is not None and trace.overview.steps]
    formats = [shares for trace in traces if (shares := PrecisionOfVariant.of_trace(trace.precision)) is not None]
    return {
        "overview": _overview(overviews) if overviews else None,
        "placement": _placement(traces),
        "precision": _precision(formats) if formats else None,
    }


def _overview(found: list[Overview]) -> OverviewOfVariant:
    alike = [item for item in found if item.kind == found[0].kind]
    names = dict.fromkeys(name for item in alike for name in item.parts_ns)
    return OverviewOfVariant(
        kind=found[0].kind,
        step_ms=float(np.mean([item.window_ns / item.steps for item in alike])) / NS_PER_MS,
        parts_ms={
            name: float(np.mean([item.parts_ns.get(name, 0) / item.steps for item in alike])) / NS_PER_MS
            for name in names
        },
        device_compute_share=median_of(alike, lambda item: item.device_compute_share),
        operators=tuple(_per_step(row, alike[0].steps) for row in alike[0].operators),
    )


def _per_step(row: TopOperator, steps: int) -> TopOperator:
    """An operator's calls and times of one step: windows differ in their number of steps. Calls: if in every step."""
    times = {name: getattr(row, name) for name in ("host_self_ns", "device_self_ns")}
    return replace(
        row,
        calls=None if row.calls is None or row.calls < steps else round(row.calls / steps),
        **{name: None if ns is None else round(ns / steps) for name, ns in times.items()},
    )


def _placement(traces: Sequence[TraceSummary]) -> PlacementOfVariant | None:
    """Figures a step, or of the whole trace where that marks no steps."""
    found = [(trace.placement, trace.quality.steps or 1) for trace in traces if trace.placement is not None]
    if not found:
        return None

    def per_step(figure: Callable[[Placement], int | None]) -> float | None:
        return median_of(found, lambda item: None if (value := figure(item[0])) is None else value / item[1])

    return PlacementOfVariant(**{name: per_step(attrgetter(name)) for name in PlacementOfVariant.__struct_fields__})


def _precision(found: list[PrecisionOfVariant]) -> PrecisionOfVariant:
    by_format = found[0].kernel_share
    shares = [name for name in PrecisionOfVariant.__struct_fields__ if name != "kernel_share"]
    return PrecisionOfVariant(
        kernel_share={name: float(np.median([item.kernel_share[name] for item in found])) for name in by_format},
        **{name: median_of(found, attrgetter(name)) for name in shares},
    )


#: The parts of loading a batch, in the order a batch goes through them.
PARTS: Final = ("fetch", "transform", "collate", "pin", "copy")


def input_figures(variant: Variant) -> InputOfVariant | None:
    """`input` of a variant: medians over its runs, None in place of what no run measured.

    `wait_ms` and `step_ms` are means over the same unprofiled steps, so that `share` (0 to 1), what of the step time
    counts, is `counted_ms` over `step_ms` in every run. `idle_part` says which part of the wait had the GPU idle, and
    `traced_share` is the share that the profiled windows give by themselves.
    """
    runs = variant.measured
    if not runs:
        return None
    share = median_of(runs, lambda run: _counted(run, run.wait_share))
    return InputOfVariant(
        workers=(runs[0].record.config.get("data") or {}).get("num_workers"),
        wait_ms=median_ms(runs, lambda run: run.wait_ns),
        counted_ms=median_ms(runs, lambda run: _counted(run, run.wait_ns)),
        step_ms=median_ms(runs, lambda run: float(run.times.counted.mean())),
        idle_part=median_of(runs, lambda run: _idle_part(run) if _on_gpu(run) else None),
        share=share,
        verdict=verdict_on(share),
        traced_share=median_of(runs, lambda run: None if run.trace is None else run.trace.input.share),
        breakdown_ms=_breakdown(variant),
    )


def _counted(run: Measured, wait: float | None) -> float | None:
    """What of a wait counts."""
    part = _idle_part(run)
    return None if part is None or wait is None else part * wait


def _idle_part(run: Measured) -> float | None:
    """The part of the wait that counts: of a GPU's run as its trace says, else all."""
    if not _on_gpu(run):
        return 1.0
    found = None if run.trace is None else run.trace.input
    if found is None or not found.wait_ns or found.gpu_idle_wait_ns is None:
        return None
    return found.gpu_idle_wait_ns / found.wait_ns


def _on_gpu(run: Measured) -> bool:
    return run.record.device == "cuda"


def _breakdown(variant: Variant) -> LoadingParts | None:
    """Milliseconds a batch in each part of loading; `fetch` is without the transform. None without such a pass."""
    tables = []
    for run in variant.runs:
        with suppress(RecordError):  # an extra: the wait stands without it
            rows = read_rows(run.path, INPUT_OF_RUN) if run.measured is not None else None
            tables += [] if rows is None else [_parts(rows)]
    if not tables:
        return None
    by_run = {part: [_median_ms(table[part]) for table in tables] for part in PARTS}
    return LoadingParts(**{part: median_of(medians, lambda ms: ms) for part, medians in by_run.items()})


def _parts(batches: pd.DataFrame) -> pd.DataFrame:
    fetch_ns = batches["fetch_ns"] - batches["transform_ns"].fillna(0)
    return pd.DataFrame({"fetch": fetch_ns, **{part: batches[f"{part}_ns"] for part in PARTS[1:]}})


def _median_ms(values: "pd.Series[Any]") -> float | None:
    known = values.dropna().to_numpy(dtype=np.float64)
    return float(np.median(known)) / NS_PER_MS if len(known) else None


def communication(variant: Variant) -> CommunicationOfVariant | None:
    """`communication` of comparison.json; None for a variant that trains in one process.

    A step is an optimizer step: `accumulate` batches go into it. `expected_ms` is one all-reduce of all gradients at
    the measured bus bandwidth, `simplified_ms` the same as parameters x 4 bytes / bandwidth.
    """
    found = [
        (run.measured, told)
        for run in variant.runs
        if run.measured and (told := _recorded_communication(run.path)) is not None
    ]
    if not found:
        return None
    runs, said = [run for run, _ in found], [told for _, told in found]
    first, config = said[0], runs[0].record.config
    traced = [ranks.all_reduce for ranks in _ranks(runs) if ranks.all_reduce is not None]
    accumulate = int(config.get("step", {}).get("accumulate", 1))
    per_step = median_of(traced, lambda t: t.count_per_step)
    expected = median_ms(said, lambda one: one.expected_ns)
    measured = median_ms(traced, lambda t: t.measured_ns_per_step)
    return CommunicationOfVariant(
        world_size=first.world_size,
        backend=first.backend,
        **_options(config),
        accumulate=accumulate,
        parameters=first.parameters,
        parameter_bytes=first.parameter_bytes,
        buckets=None if first.bucket_bytes is None else len(first.bucket_bytes),
        bucket_bytes=first.bucket_bytes,
        bus_bytes_per_s=median_of(said, lambda one: one.bus_bytes_per_s),
        bandwidths=_bandwidths(said),
        expected_ms=expected,
        simplified_ms=median_ms(said, lambda one: one.simplified_ns),
        measured_ms=measured,
        measured_over_expected=measured / expected if measured is not None and expected else None,
        exposed_ms=median_ms(traced, lambda t: t.exposed_ns_per_step),
        overlap=median_of(traced, lambda t: t.overlap),
        wait_ms=median_ms(traced, lambda t: t.wait_ns_per_step),
        bytes_per_step=median_of(traced, lambda t: t.bytes_per_step),
        all_reduces_per_step=per_step,
        all_reduces_per_batch=None if per_step is None else per_step / accumulate,
        straggler=_straggler(runs),
    )


def _recorded_communication(run_dir: Any) -> Communication | None:
    try:
        return read_communication(run_dir)
    except RecordError:
        return None  # the run's own figures stand without it


def _ranks(runs: Sequence[Measured]) -> list[Ranks]:
    """What all ranks' traces of each run say together, of those that have it."""
    return [run.summary.ranks for run in runs if run.summary is not None and run.summary.ranks is not None]


def _options(config: Mapping[str, Any]) -> dict[str, Any]:
    """How the config wants gradients reduced; null where an older run does not say."""
    names = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "no_sync", "comm_hook")
    return {name: config.get("distributed", {}).get(name) for name in names}


def _bandwidths(said: Sequence[Communication]) -> tuple[TriedMessage, ...]:
    """One message's all-reduce by itself, for every size that was tried."""
    by_size: dict[int, list[Any]] = {}
    for one in said:
        for tried in one.bandwidths:
            by_size.setdefault(tried.bytes, []).append(tried)
    return tuple(
        TriedMessage(
            bytes=size,
            ms=median_ms(tries, lambda tried: tried.median_ns),
            bus_bytes_per_s=median_of(tries, lambda tried: tried.bus_bytes_per_s),
        )
        for size, tries in sorted(by_size.items())
    )


def _straggler(runs: Sequence[Measured]) -> StragglerOfVariant | None:
    """The rank that others wait for in every run, with its median share of the waiting; None if runs disagree.

    Of two ranks one always causes the larger part: only that it is the same one time and again says something.
    """
    named = [ranks.straggler for ranks in _ranks(runs) if ranks.straggler is not None]
    if len(named) < len(runs) or len({found.rank for found in named}) != 1:
        return None
    share = float(np.median([found.share for found in named]))
    return StragglerOfVariant(rank=named[0].rank, share=share, runs=len(named))
