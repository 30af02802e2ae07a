"""Estimates for GPUs that are not there in words, and which variant of a study is estimated to be the fastest."""

from collections.abc import Mapping
from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.estimate import Band, Estimate
from steptrace.documents.variant import VariantResult

_NONE: Final = "not estimated"
#: Most variants that are named; of more only the number is given.
MOST_NAMED: Final = 4


def step_words(one: Estimate) -> str:
    """The band of the step time, or that there is none."""
    return _NONE if one.step_ms is None else fmt.band_ms(*one.step_ms)


def busy_words(one: Estimate) -> str:
    """The band of GPU busy."""
    if one.gpu_busy_pct is None:
        return _NONE
    return fmt.band_percent(*one.gpu_busy_pct)


def memory_words(one: Estimate) -> str:
    """Peak memory and whether it fits."""
    if one.peak_memory_bytes is None:
        return _NONE
    form = " (without torch.compile)" if one.is_compiled else ""
    return f"{fmt.size_bytes(one.peak_memory_bytes)}, {'fits' if one.fits else 'does not fit'}{form}"


def leads(study: Comparison) -> bool:
    """Whether estimates answer the study's question: no step was measured on a GPU, and they do not all say the same.

    A study of what is in no estimate, such as data loading, is answered by the machine's own times.
    """
    measured = study.environment is not None and study.environment.gpu is not None and study.measured
    gpus = [gpu for gpu in estimated_gpus(study) if _bands(study, gpu)]
    return not measured and any(len(study.variants) == 1 or not all_alike(study, gpu) for gpu in gpus)


def all_alike(study: Comparison, gpu: str) -> bool:
    """Whether all variants have the same estimate on one GPU, as far as its digits go."""
    bands = _bands(study, gpu)
    return len(bands) == len(study.variants) and len({fmt.band_ms(*band) for band in bands.values()}) == 1


def estimated_gpus(study: Comparison) -> list[str]:
    """The GPUs that a variant has an estimate for, in the order of `estimate_gpus`."""
    return list(dict.fromkeys(one.gpu for variant in study.variants for one in variant.estimates))


def estimate_of(variant: VariantResult, gpu: str) -> Estimate | None:
    """A variant's estimate for one GPU."""
    return next((one for one in variant.estimates if one.gpu == gpu), None)


def estimated_fastest(study: Comparison, gpu: str) -> list[VariantResult]:
    """The variants that may be the fastest, the simplest first: they have no band, or no other's lies below theirs."""
    times = _bands(study, gpu)
    least = min((high for _, high in times.values()), default=0.0)
    may_be = [variant for variant in study.variants if variant.name not in times or times[variant.name][0] <= least]
    return sorted(may_be, key=study.changed)


def estimated_winner(study: Comparison, gpu: str) -> VariantResult | None:
    """Of the variants that may be the fastest the simplest one whose band lies below its baseline's.

    None where none does: then no difference to the baseline can be estimated.
    """
    times, may_be = _bands(study, gpu), estimated_fastest(study, gpu)
    if len(may_be) == 1:
        return may_be[0]
    both = [v for v in may_be if v.name in times and v.baseline in times]
    faster = [v for v in both if times[v.baseline][0] > times[v.name][1]]
    return next((variant for variant in faster if variant.can_be_used), next(iter(faster), None))


def estimated_sentence(study: Comparison, gpu: str) -> str:
    """Which variant is estimated to be the fastest on one GPU, or why none is named."""
    times, best = _bands(study, gpu), estimated_winner(study, gpu)
    words = {name: fmt.band_ms(*band) for name, band in times.items()}
    missing = [f"`{variant.name}`" for variant in study.variants if variant.name not in times]
    if len(study.variants) == 1:
        return f"Estimated for {gpu}: {next(iter(words.values()))}." if words else f"Not estimated for {gpu}."
    if best is None:
        if missing:
            return f"No fastest variant can be named for {gpu}: {fmt.enumeration(missing)} cannot be estimated."
        if all_alike(study, gpu):
            return (
                f"All variants have the same estimate for {gpu}. "
                "Data loading, communication between ranks and workspaces of libraries are not included."
            )
        return f"The estimate for {gpu} cannot tell the variants apart: their bands overlap."
    may_be = [variant for variant in estimated_fastest(study, gpu) if variant is not best]
    times_as_fast = _times_as_fast(times, best)
    what = times_as_fast if may_be else ", ".join(filter(None, ["the fastest", times_as_fast]))
    wrong = ", but it computes something else" if best.equivalence.status == "differs" else ""
    instead = "" if best.is_baseline or best.baseline not in words else f" instead of {words[best.baseline]}"
    sentences = [f"On {gpu} `{best.name}` is estimated to be {what}{wrong}: {words[best.name]} per step{instead}."]
    if others := [f"`{variant.name}`" for variant in may_be if variant.name in times]:
        other = fmt.enumeration(others) if len(others) <= MOST_NAMED else f"{len(others)} other variants"
        sentences.append(f"{other} cannot be told from it (the estimates overlap).")
    if missing:
        sentences.append(f"{fmt.enumeration(missing)} cannot be estimated and may be faster.")
    return " ".join(sentences)


def waits_at_most(variant: VariantResult) -> str:
    """The most that all waits of a step for the GPU cost by the first estimate; empty without one.

    Without syncs a step takes the longer of the GPU's work and the host's, with them at most their sum.
    """
    one = next(iter(variant.estimates), None)
    if one is None or one.gpu_ms is None or one.host_ms is None:
        return ""
    return f"at most {fmt.duration_ms(min(one.gpu_ms[1], one.host_ms[1]), 2)} per step on {one.gpu}, data loading aside"


def _times_as_fast(times: Mapping[str, Band], best: VariantResult) -> str:
    """How many times as fast as its baseline a variant is by the ends of both bands; empty where they overlap."""
    if best.is_baseline or best.baseline not in times or best.name not in times:
        return ""
    (low, high), (low_before, high_before) = times[best.name], times[best.baseline]
    if low_before <= high:
        return ""
    least, most = fmt.significant(low_before / high, 2), fmt.significant(high_before / low, 2)
    return f"{least} to {most} times as fast as `{best.baseline}`"


def _bands(study: Comparison, gpu: str) -> dict[str, Band]:
    estimates = {variant.name: estimate_of(variant, gpu) for variant in study.variants}
    return {name: one.step_ms for name, one in estimates.items() if one is not None and one.step_ms is not None}
