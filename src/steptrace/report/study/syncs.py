"""The section "Syncs" of a study's page: where each variant syncs, and what changes against its baseline."""

from collections.abc import Sequence
from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.syncs import Site
from steptrace.documents.variant import SyncChange, SyncDiff, VariantResult
from steptrace.report.page.markup import Html, place, render, short_place, unplaced
from steptrace.report.page.parts import Explained, site_table
from steptrace.report.study.variants import variants_shown

#: The blocks of more variants than this start folded.
_MANY: Final = 6


def syncs(study: Comparison) -> Html:
    """The sites of every variant: measured, or predicted and called so; then what each gains and loses.

    Variants without any sync stand in one sentence.
    """
    every = variants_shown(study)
    without = [variant for variant in every if _has_none(variant)]
    # Variants with the same syncs are one block.
    alike: dict[object, list[VariantResult]] = {}
    for variant in every:
        if variant not in without:
            alike.setdefault((variant.syncs, _sites(variant), variant.predicted_unknown), []).append(variant)
    tables = [(group, _counts(group[0]), _table(group[0])) for group in alike.values()]
    return render(
        "study/syncs",
        study=study,
        blocks=tables,
        without=without,
        changes=[
            (v, v.sync_diff.basis, text) for v in every if v.sync_diff is not None and (text := changed(v.sync_diff))
        ],
        left_out=len(study.variants) - len(every),
        meanings=max((table.meanings for *_, table in tables), key=len, default=()),
        many=len(study.variants) > _MANY,
    )


def _has_none(variant: VariantResult) -> bool:
    """Whether no sync was measured and none predicted; without a measured count, with all operations covered."""
    measured, predicted = variant.syncs.measured_per_step, variant.syncs.predicted_per_step
    if measured is None:
        return predicted == 0 and not variant.predicted_unknown and not variant.unfollowed_branches
    return measured == 0 and not predicted


def _counts(variant: VariantResult) -> Html:
    """Its syncs per step by all that looked: the trace, the prediction, PyTorch's own check."""
    of, unknown = variant.syncs, variant.predicted_unknown
    sources = ((of.measured_per_step, "measured"), (of.predicted_per_step, "predicted"))
    counts = [Html("<b>{}</b> {}").format(fmt.count(count), word) for count, word in sources if count is not None]
    if of.warned_per_step is not None and of.measured_per_step is not None:
        counts.append(Html("<b>{}</b> seen by PyTorch's own check").format(fmt.count(of.warned_per_step)))
    missing = [Html("{} not covered").format(fmt.plural(len(unknown), "operation"))] if unknown else []
    missing += [
        Html("{} does something else every {} steps, and {} were followed").format(
            branch.place, branch.every, of.predicted_steps
        )
        for branch in variant.unfollowed_branches
    ]
    per_step = Html("Per step: ") if counts else Html("neither measured nor predicted")
    return per_step + Html(", ").join([*counts, *missing])


def _table(variant: VariantResult) -> Explained:
    """The sites that were traced, else those that are predicted; nothing without any."""
    sites = _sites(variant)
    if not sites:
        return Explained("")
    if variant.trace is None or sites is not variant.sync_sites:
        return site_table(sites)
    return site_table(sites, steps=variant.trace.quality.steps, runs=variant.trace.runs)


def _sites(variant: VariantResult) -> Sequence[Site]:
    return variant.sync_sites if variant.syncs.measured_per_step is not None else variant.predicted_sites


def changed(diff: SyncDiff) -> str:
    """The places that sync less or more often than the baseline's: "removes a.py:3, :5; adds b.py:7; a.py:9 2 → 1"."""
    kinds: dict[str, list[SyncChange]] = {"removes": [], "adds": []}
    others = []
    for site in diff.sites:
        before, now = site.baseline_count_per_step or 0, site.variant_count_per_step or 0
        if before and now and before != now:
            others.append(f"`{place(site) or unplaced(site)}` {fmt.count(before)} → {fmt.count(now)}")
        elif before != now:
            kinds["removes" if before else "adds"].append(site)
    return "; ".join([*(f"{kind} {_places(sites)}" for kind, sites in kinds.items() if sites), *others])


def _places(sites: Sequence[SyncChange]) -> str:
    lines = [(short_place(s.file, None), s.line) for s in sites if s.file is not None and s.line is not None]
    others = dict.fromkeys(f"`{place(s) or unplaced(s)}`" for s in sites if s.file is None or s.line is None)
    return ", ".join([*fmt.lines_of(lines), *others])
