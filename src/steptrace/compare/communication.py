"""What the ranks of a variant's training told each other: what it should take, what it took, what of it was hidden.

Figures of traces are medians over the variant's runs of medians over the ranks; what a run measured of the connection
itself (communication.json) is a median over the runs too. None of it decides about speed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from steptrace.compare.explain import median_of
from steptrace.compare.load import Measured, Variant
from steptrace.errors import RecordError
from steptrace.record import Communication, read_communication

_NS_PER_MS: Final = 1e6
_NOTHING: Final[Mapping[str, Any]] = {}


def communication(variant: Variant) -> dict[str, Any] | None:
    """`communication` of comparison.json; None for a variant that trains in one process.

    A step is an optimizer step: `accumulate` batches go into it. `expected_ms` is one all-reduce of all gradients at
    the measured bus bandwidth, `simplified_ms` the same as parameters x 4 bytes / bandwidth.
    """
    found = [(run.measured, told) for run in variant.runs if run.measured and (told := _said(run.path)) is not None]
    if not found:
        return None
    runs, said = [run for run, _ in found], [told for _, told in found]
    first, config = said[0], runs[0].record.config
    traced = [_traced(run) for run in runs]
    accumulate = int(config.get("step", {}).get("accumulate", 1))
    per_step = median_of(traced, lambda t: t.get("count_per_step"))
    expected = median_of(said, lambda one: one.expected_ns / _NS_PER_MS)
    measured = _ms(traced, "measured_ns_per_step")
    return {
        "world_size": first.world_size,
        "backend": first.backend,
        **_options(config),
        "accumulate": accumulate,
        "parameters": first.parameters,
        "parameter_bytes": first.parameter_bytes,
        "buckets": None if first.bucket_bytes is None else len(first.bucket_bytes),
        "bucket_bytes": None if first.bucket_bytes is None else list(first.bucket_bytes),
        "bus_bytes_per_s": median_of(said, lambda one: one.bus_bytes_per_s),
        "bandwidths": _bandwidths(said),
        "expected_ms": expected,
        "simplified_ms": median_of(said, lambda one: one.simplified_ns / _NS_PER_MS),
        "measured_ms": measured,
        "measured_over_expected": measured / expected if measured is not None and expected else None,
        "exposed_ms": _ms(traced, "exposed_ns_per_step"),
        "overlap": median_of(traced, lambda t: t.get("overlap")),
        "wait_ms": _ms(traced, "wait_ns_per_step"),
        "bytes_per_step": median_of(traced, lambda t: t.get("bytes_per_step")),
        "all_reduces_per_step": per_step,
        "all_reduces_per_batch": None if per_step is None else per_step / accumulate,
        "straggler": _straggler(runs),
    }


def _said(run_dir: Any) -> Communication | None:
    try:
        return read_communication(run_dir)
    except RecordError:
        return None  # the run's own figures stand without it


def _traced(run: Measured) -> Mapping[str, Any]:
    """What all ranks' traces of a run say together; empty without."""
    return ((run.summary or _NOTHING).get("ranks") or _NOTHING).get("all_reduce") or _NOTHING


def _ms(traced: Sequence[Mapping[str, Any]], figure: str) -> float | None:
    return median_of(traced, lambda t: None if t.get(figure) is None else t[figure] / _NS_PER_MS)


def _options(config: Mapping[str, Any]) -> dict[str, Any]:
    """How the config wants gradients reduced; null where an older run does not say."""
    names = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "no_sync", "comm_hook")
    return {name: config.get("distributed", {}).get(name) for name in names}


def _bandwidths(said: Sequence[Communication]) -> list[dict[str, Any]]:
    """One message's all-reduce by itself, for every size that was tried."""
    by_size: dict[int, list[Any]] = {}
    for one in said:
        for tried in one.bandwidths:
            by_size.setdefault(tried.bytes, []).append(tried)
    return [
        {
            "bytes": size,
            "ms": median_of(tries, lambda tried: tried.median_ns / _NS_PER_MS),
            "bus_bytes_per_s": median_of(tries, lambda tried: tried.bus_bytes_per_s),
        }
        for size, tries in sorted(by_size.items())
    ]


def _straggler(runs: Sequence[Measured]) -> dict[str, Any] | None:
    """The rank that others wait for in every run, with its median share of the waiting; None if runs disagree.

    Of two ranks one always causes the larger part: only that it is the same one time and again says something.
    """
    named = [((run.summary or _NOTHING).get("ranks") or _NOTHING).get("straggler") or _NOTHING for run in runs]
    ranks = {found.get("rank") for found in named}
    if len(ranks) != 1 or None in ranks:
        return None
    return {"rank": ranks.pop(), "share": median_of(named, lambda found: found["share"]), "runs": len(named)}
