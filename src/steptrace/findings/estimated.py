"""Estimates for GPUs that are not there in words, and which variant of a study is estimated to be the fastest."""

from collections.abc import Mapping
from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.estimate import Band, ClassWork, Estimate
from steptrace.documents.variant import VariantResult

_NONE: Final = "not estimated"
_NEARLY_AS_FAST: Final = 1.1
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


def rate_words(samples_per_s: Band) -> str:
    """Samples a second, in three digits."""
    low, high = (fmt.count(float(fmt.significant(end).replace(",", ""))) for end in samples_per_s)
    return low if low == high else f"{low} to {high}"


def tested_words(work: ClassWork) -> str:
    """Whether a class of kernels was held to measurements, and why its band is wide all the same."""
    return f"{'yes' if work.tested else 'no'}{', varies with the version of PyTorch' if work.varies else ''}"


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
    """The variants that may be the fastest, the simplest first: they have no band, or none is clearly faster.

    With the same draws for all a variant is clearly slower where the range of its difference to the fastest one does
    not hold 0; where no difference is known, where another band lies below its own.
    """
    times = _bands(study, gpu)
    least = min((high for _, high in times.values()), default=0.0)

    def may_be(variant: VariantResult) -> bool:
        one = estimate_of(variant, gpu)
        if one is None or one.step_ms is None:
            return True
        if one.behind is not None:
            return not one.behind.is_slower
        return one.difference is not None or one.step_ms[0] <= least

    return sorted(filter(may_be, study.variants), key=study.changed)


def estimated_winner(study: Comparison, gpu: str) -> VariantResult | None:
    """Of the variants that may be the fastest the simplest one that is clearly faster than its baseline.

    None where none is: then no difference to the baseline can be estimated.
    """
    times, may_be = _bands(study, gpu), estimated_fastest(study, gpu)
    if len(may_be) == 1:
        return may_be[0]
    faster = [variant for variant in may_be if _clearly_faster(variant, times, gpu)]
    return next((variant for variant in faster if variant.can_be_used), next(iter(faster), None))


def _clearly_faster(variant: VariantResult, times: Mapping[str, Band], gpu: str) -> bool:
    one = estimate_of(variant, gpu)
    if one is not None and one.difference is not None:
        return one.difference.is_faster
    both = variant.name in times and variant.baseline in times
    return both and times[variant.baseline][0] > times[variant.name][1]


def difference_words(one: Estimate) -> str:
    """What a step saves against its baseline: a range, or that it cannot be told; empty without a baseline."""
    pair = one.difference
    if pair is None:
        return ""
    low, high = pair.saved_ms
    if pair.is_faster:
        return f"saves {fmt.band_ms(low, high)}"
    if pair.is_slower:
        return f"costs {fmt.band_ms(-high, -low)}"
    return f"cannot be told ({fmt.share(pair.faster_pct / 100)} of the draws are faster)"


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
                "Data loading, waiting for slower ranks and workspaces of libraries are not included."
            )
        return f"The estimate for {gpu} cannot tell which variant is the fastest."
    may_be = [variant for variant in estimated_fastest(study, gpu) if variant is not best]
    times_as_fast = _times_as_fast(times, best, gpu)
    what = times_as_fast if may_be else ", ".join(filter(None, ["the fastest", times_as_fast]))
    wrong = ", but it computes something else" if best.equivalence.status == "differs" else ""
    instead = "" if best.is_baseline or best.baseline not in words else f" instead of {words[best.baseline]}"
    one = estimate_of(best, gpu)
    pair = None if one is None else one.difference
    saves = f" (it saves {fmt.band_ms(*pair.saved_ms)})" if pair is not None and pair.is_faster else ""
    estimated = f"{words[best.name]} per step{instead}{saves}"
    sentences = [f"On {gpu} `{best.name}` is estimated to be {what}{wrong}: {estimated}."]
    if others := [f"`{variant.name}`" for variant in may_be if variant.name in times]:
        other = fmt.enumeration(others) if len(others) <= MOST_NAMED else f"{len(others)} other variants"
        sentences.append(f"{other} cannot be told from it.")
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


def _times_as_fast(times: Mapping[str, Band], best: VariantResult, gpu: str) -> str:
    """How many times as fast as its baseline a variant is; empty where it is not clearly faster."""
    one = estimate_of(best, gpu)
    if best.is_baseline or best.baseline not in times or one is None or one.step_ms is None:
        return ""
    if one.difference is not None:
        if not one.difference.is_faster:
            return ""
        least, most = one.difference.times_as_fast
    else:
        (low, high), (low_before, high_before) = one.step_ms, times[best.baseline]
        if low_before <= high:
            return ""
        least, most = low_before / high, high_before / low
    # Three digits where two would say "1.0 times as fast".
    digits = 3 if least < _NEARLY_AS_FAST else 2
    words = dict.fromkeys(fmt.significant(end, digits) for end in (least, most))
    return f"{' to '.join(words)} times as fast as `{best.baseline}`"


def _bands(study: Comparison, gpu: str) -> dict[str, Band]:
    estimates = {variant.name: estimate_of(variant, gpu) for variant in study.variants}
    return {name: one.step_ms for name, one in estimates.items() if one is not None and one.step_ms is not None}
