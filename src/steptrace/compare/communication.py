"""What the ranks of a variant's training told each other: what it should take, what it took, what of it was hidden.

Figures of traces are medians over the variant's runs of medians over the ranks; what a run measured of the connection
itself (communication.json) is a median over the runs too. None of it decides about speed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steptrace.compare.explain import median_ms, median_of
from steptrace.compare.load import Measured, Variant
from steptrace.documents.comparison import CommunicationOfVariant, StragglerOfVariant, TriedMessage
from steptrace.documents.run import Communication
from steptrace.documents.summary import Ranks
from steptrace.errors import RecordError
from steptrace.record import read_communication


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
    traced = [ranks.all_reduce for ranks in _ranks(runs) if ranks is not None and ranks.all_reduce is not None]
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


def _ranks(runs: Sequence[Measured]) -> list[Ranks | None]:
    """What all ranks' traces of each run say together; None without."""
    return [None if run.summary is None else run.summary.ranks for run in runs]


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
    named = [ranks.straggler for ranks in _ranks(runs) if ranks is not None and ranks.straggler is not None]
    if len(named) < len(runs) or len({found.rank for found in named}) != 1:
        return None
    share = float(np.median([found.share for found in named]))
    return StragglerOfVariant(rank=named[0].rank, share=share, runs=len(named))
