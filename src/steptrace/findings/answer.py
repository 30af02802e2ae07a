"""The rule that gives a study's answer: which variant to use, by how much, whether it computes the same, and how."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, RatioToBaseline, VariantResult, is_measuring, key_of
from steptrace.documents.finding import ANSWER
from steptrace.findings.model import Match, Rule, rule

#: What a variant's answer is, as the claim ends.
_SAME_ANSWER: Final = {
    "same": "it computes the same",
    "not comparable": "its results cannot be compared with the baseline's",
    "not measured": "whether it computes the same was not checked",
}
_COMMAND: Final = "`snakemake --cores all --config 'studies=[{}]' scale=gpu`"
#: So many variants are named.
_MOST_NAMED: Final = 3


def _answers(study: Comparison) -> Iterator[Match]:
    """One answer for each baseline (in a matrix every cell has one), the largest gain first."""
    if len(study.variants) < 2:
        return
    if study.on_simulated_gpu:
        # What it leaves to say: PyTorch's real code syncs and launches.
        advice = f"Run it on a GPU: {_COMMAND.format(study.study)}."
        yield Match(severity="info", claim=_expected_to_gain(study), evidence=(), advice=advice)
        return
    cells = [
        list(cell) for _, cell in groupby(sorted(study.variants, key=lambda v: v.baseline), key=lambda v: v.baseline)
    ]
    found = [match for cell in cells if (match := _of_cell(study, cell)) is not None]
    if not found and any(variant.ratio is not None for variant in study.variants):
        yield _NO_VERDICT
    ratios = {variant.name: variant.ratio.value for variant in study.variants if variant.ratio is not None}
    yield from sorted(found, key=lambda match: -ratios.get(match.variant or "", 0.0))


_NO_VERDICT: Final = Match(
    severity="info",
    claim="no variant can be chosen yet: there is no verdict on any",
    evidence=(),
    advice="Take more runs of each (`--config repeats=5`) on a machine without other work.",
)


def _of_cell(study: Comparison, cell: Sequence[VariantResult]) -> Match | None:
    baseline = next((variant for variant in cell if variant.name == variant.baseline), None)
    judged = [(v, v.ratio) for v in cell if v is not baseline and v.ratio is not None and v.ratio.verdict is not None]
    if baseline is None or not judged:
        return None
    faster = [v for v, ratio in judged if ratio.verdict == "faster"]
    if usable := [v for v in faster if v.can_be_used]:
        return _use(study, baseline, usable)
    return _stay(baseline, faster, [v for v, ratio in judged if ratio.verdict == "undecided"])


def _use(study: Comparison, baseline: VariantResult, usable: Sequence[VariantResult]) -> Match:
    variant = max(usable, key=lambda v: v.ratio.value if v.ratio is not None else 0.0)
    ratio, before, after = variant.ratio, baseline.step_ms, variant.step_ms
    assert ratio is not None  # there is a verdict, so both were measured
    assert before is not None
    assert after is not None
    by = fmt.ratio(ratio.value, ratio.low, ratio.high)
    alike = [v for v in usable if v.name in study.not_told_apart(variant.name)]
    simplest = f", or the simplest of {_names(alike)}, which these runs cannot tell from it" if alike else ""
    return Match(
        severity="info",
        claim=f"{by} faster than `{baseline.name}`{_interval(study, ratio)}, "
        f"{fmt.duration_ms(before.median - after.median)} less a step; " + _SAME_ANSWER[variant.equivalence.status],
        evidence=(f"{fmt.duration_ms(after.median)} a step against {fmt.duration_ms(before.median)}",),
        advice=f"Use `{variant.name}`{simplest}. {_changes(baseline, variant)}{_waits_gone(variant)}"
        + _without_gpu(study),
        variant=variant.name,
    )


def _changes(baseline: VariantResult, variant: VariantResult) -> str:
    """What to change in a training like the baseline's; how the two were measured is none of it."""
    new = [text for text in variant.overrides if text not in baseline.overrides and not is_measuring(text)]
    keys = {key_of(text) for text in new}
    old = [
        t for t in baseline.overrides if t not in variant.overrides and key_of(t) not in keys and not is_measuring(t)
    ]
    if not (new or old):
        return f"Nothing in the configuration tells it from `{baseline.name}`."
    said = [_codes(new)] * bool(new) + [f"without {_codes(old)}"] * bool(old)
    return f"To get it from `{baseline.name}`: {', '.join(said)}."


def _waits_gone(variant: VariantResult) -> str:
    """The lines at which the host waits in the baseline's step and not in the variant's."""
    if variant.sync_diff is None:
        return ""
    before, after = defaultdict[tuple[str, int], float](float), defaultdict[tuple[str, int], float](float)
    for site in variant.sync_diff.sites:
        if site.file is not None and site.line is not None:
            before[site.file, site.line] += site.baseline_count_per_step or 0
            after[site.file, site.line] += site.variant_count_per_step or 0
    lines: dict[str, list[int]] = {}
    for file, line in sorted(place for place in before if before[place] and not after[place]):
        lines.setdefault(file, []).append(line)
    gone = [f"`{file}:{first}`" + "".join(f", `:{line}`" for line in more) for file, (first, *more) in lines.items()]
    then = "would then no longer wait" if variant.sync_diff.basis == "predicted" else "then no longer waits"
    return f" The host {then} at {fmt.enumeration(gone)}." if gone else ""


def _codes(texts: Sequence[str]) -> str:
    return fmt.enumeration([f"`{text}`" for text in texts])


def _stay(baseline: VariantResult, faster: Sequence[VariantResult], undecided: Sequence[VariantResult]) -> Match:
    differing = [v for v in faster if v.equivalence.status == "differs"]
    failed = [v for v in faster if v.equivalence.status == "failed"]
    others = [f"{_names(differing)} would be, but the answer is another"] if differing else []
    others += [f"{_names(failed)} would be, but the check of the answer failed"] if failed else []
    more = [f"undecided: {_names(undecided)}"] if undecided else []
    return Match(
        severity="info",
        claim="; ".join(["no variant is shown to be faster", *others, *more]),
        evidence=(),
        advice=f"Keep `{baseline.name}`, or take more runs (`--config repeats=...`): four times as many for "
        "an interval half as wide."
        if undecided
        else f"Keep `{baseline.name}`: nothing in this study is worth a change. What is left is to be found in its own "
        "step.",
        variant=baseline.name,
    )


def _expected_to_gain(study: Comparison) -> str:
    """Which variants are expected to gain on a GPU by their counts, where no time means anything: a simulated GPU's."""
    syncs = _extremes({v.name: v.syncs.predicted_per_step for v in study.variants})
    kernels = _extremes({v.name: v.kernels_per_step for v in study.variants})
    if syncs is not None:
        return f"by predicted syncs {syncs[0]} expected to gain ({syncs[1]} a step, {syncs[2]})"
    if kernels is not None:
        limited = "where launching kernels is what limits a step"
        return f"{limited}, {kernels[0]} expected to gain ({kernels[1]} kernels a step, {kernels[2]})"
    return "its variants differ neither in predicted syncs nor in kernels"


def _extremes(counts: Mapping[str, float | None]) -> tuple[str, str, str] | None:
    """Who has the least, the least, and who has the most, in words; None where all that are known are the same."""
    known = {name: count for name, count in counts.items() if count is not None}
    if len(set(known.values())) < 2:
        return None
    low, most = min(known.values()), max(known, key=lambda name: known[name])
    least = [name for name, count in known.items() if count == low]
    who = f"{_named(least)} {'is' if len(least) == 1 else 'are'}"
    return who, fmt.count(low), f"`{most}` has {fmt.count(known[most])}"


def _interval(study: Comparison, ratio: RatioToBaseline) -> str:
    if ratio.low is None:
        return ""
    return f" ({fmt.setting(study.method.confidence)} interval {fmt.ratio_interval(ratio.low, ratio.high)})"


def _names(variants: Sequence[VariantResult]) -> str:
    return _named([variant.name for variant in variants])


def _named(texts: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = len(texts) - _MOST_NAMED
    return fmt.enumeration([*(f"`{text}`" for text in texts[:_MOST_NAMED]), *([f"{more} more"] if more > 0 else [])])


def _without_gpu(study: Comparison) -> str:
    """That a CPU's times are no GPU's, where there was none."""
    if study.environment is None or study.environment.gpu is not None:
        return ""
    there = _COMMAND.format(study.study)
    return f" These are times of a CPU: on a GPU another variant may be the fastest. Run it there: {there}."


ANSWER_RULES: Final[tuple[Rule[Comparison], ...]] = (rule(ANSWER, _answers),)
