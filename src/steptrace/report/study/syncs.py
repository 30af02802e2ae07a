"""The section "Syncs" of a study's page: the places where each variant syncs, and the changes against its baseline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.sync_counts import SyncChange, SyncCounts, SyncDiff, SyncedSteps, UnknownPlace
from steptrace.documents.syncs import SiteRow, often
from steptrace.documents.variant import VariantResult
from steptrace.findings.removals import removals
from steptrace.report.page.markup import Html, place, render, short_place, unplaced
from steptrace.report.page.rows import site_table
from steptrace.report.page.section import Explained
from steptrace.report.study.variants import variants_shown
from steptrace.words.matrix import removal_row
from steptrace.words.prediction import awaited_in_words

#: The blocks of more variants than this start folded.
_MANY: Final = 6
#: The most rows that compare blocked time with what a step saves.
_MOST_REMOVALS: Final = 24


def syncs(study: Comparison) -> Html:
    """The sites of each variant, measured or predicted, and the syncs that it adds and removes.

    Variants without any sync are named in one sentence.
    """
    shown = variants_shown(study)
    without = [variant for variant in shown if _has_none(variant)]
    blocks = _blocks([variant for variant in shown if variant not in without], fold_all=len(study.variants) > _MANY)
    return render(
        "study/syncs",
        lead=_lead(study),
        is_predicted=not any(variant.syncs.measured_per_step is not None for variant in study.variants),
        blocks=blocks,
        without=[variant.name for variant in without],
        none_syncs=len(without) == len(study.variants),
        changes=[
            (variant, variant.sync_diff.basis, text)
            for variant in shown
            if variant.sync_diff is not None and (text := changed(variant.sync_diff))
        ],
        removals=[(row, removal_row(row)) for row in removals(study)[:_MOST_REMOVALS]],
        left_out=len(study.variants) - len(shown),
        meanings=max((block.table.meanings for block in blocks), key=len, default=()),
    )


#: How syncs are known: by traces, by predictions, or not at all.
Known = Literal["measured", "predicted", "unknown"]


@dataclass(frozen=True)
class _Lead:
    """What the section says first: how the syncs are known, and how they were predicted."""

    known: Known
    text: str = ""


def _lead(study: Comparison) -> _Lead:
    counts = [variant.syncs for variant in study.variants]
    if any(syncs.measured_per_step is not None for syncs in counts):
        return _Lead("measured")
    if all(syncs.predicted_per_step is None for syncs in counts):
        return _Lead("unknown")
    has_gpu = study.environment is not None and study.environment.gpu is not None
    why = "no run measured them" if has_gpu else "these runs had no GPU"
    return _Lead("predicted", f"{why}. {_followed(counts)}")


def _followed(counts: Sequence[SyncCounts]) -> str:
    """Which steps were followed in software: the second one of our own trainings, several of a program."""
    batches = {syncs.predicted_batch_size for syncs in counts} - {None}
    steps = sorted({syncs.predicted_steps for syncs in counts if syncs.predicted_steps is not None})
    if batches:
        what = "Each variant's second training step was"
    else:
        what = f"{' or '.join(map(str, steps)) or 'A few'} steps of each variant's program were"
    batch = f" (a batch of {batches.pop()})" if len(batches) == 1 else ""
    return f"{what} followed in software, on a virtual GPU, with the settings of scale `gpu`{batch}."


@dataclass(frozen=True)
class _Block:
    """Variants with the same syncs.

    Attributes:
        variants: their names.
        counts: their syncs per step.
        table: their sites.
        is_open: whether the block is open.
        notes: what to know of the sites; a sentence each.
        unknown: the places that the prediction does not cover.
    """

    variants: Sequence[str]
    counts: Html
    table: Explained
    is_open: bool
    notes: Sequence[str]
    unknown: Sequence[UnknownPlace]


def _blocks(variants: Sequence[VariantResult], *, fold_all: bool) -> list[_Block]:
    """The variants with any syncs, those with the same syncs together; the first block is open."""
    alike: dict[object, list[VariantResult]] = {}
    for variant in variants:
        alike.setdefault((variant.syncs, _sites(variant), variant.predicted_unknown), []).append(variant)
    blocks = list[_Block]()
    for group in alike.values():
        first = group[0]
        counts = first.syncs
        total = counts.predicted_per_step if counts.measured_per_step is None else counts.measured_per_step
        says_something = bool(total or first.predicted_unknown)
        blocks.append(
            _Block(
                variants=[variant.name for variant in group],
                counts=_counts(first),
                table=_sites_table(first),
                is_open=not blocks and says_something and not fold_all,
                notes=[*_notes(first)],
                unknown=first.predicted_unknown,
            )
        )
    return blocks


def _notes(variant: VariantResult) -> Iterator[str]:
    """What to know of a variant's sites; a sentence each."""
    measured, predicted = variant.syncs.measured_per_step, variant.syncs.predicted_per_step
    if variant.sync_sites and variant.trace is not None and variant.trace.syncs.ceiling_ns:
        saved = fmt.duration_ns(variant.trace.syncs.ceiling_ns / (variant.trace.quality.steps or 1))
        yield f"Without its syncs a step is at most {saved} shorter."
    elif measured and not variant.sync_sites:
        yield "The trace does not say where they happen."
    if measured is not None and predicted is not None and measured != predicted:
        yield "Counts differ where a sync depends on the data, or lies inside a library."


def _has_none(variant: VariantResult) -> bool:
    """Whether no sync was measured and none predicted; without a measured count, with all operations covered."""
    measured, predicted = variant.syncs.measured_per_step, variant.syncs.predicted_per_step
    if measured is None:
        seen_all = not (variant.predicted_unknown or variant.unfollowed_branches or variant.predicted_awaited)
        return predicted == 0 and seen_all
    return measured == 0 and not predicted


def _counts(variant: VariantResult) -> Html:
    """Its syncs per step by each source: the trace, the prediction, PyTorch's own check."""
    syncs = variant.syncs
    unknown = variant.predicted_unknown
    sources = ((syncs.measured_per_step, "measured"), (syncs.predicted_per_step, "predicted"))
    counts = [Html("<b>{}</b> {}").format(fmt.count(count), word) for count, word in sources if count is not None]
    if syncs.warned_per_step is not None and syncs.measured_per_step is not None:
        counts.append(Html("<b>{}</b> seen by PyTorch's own check").format(fmt.count(syncs.warned_per_step)))
    missing = [Html("{} not covered").format(fmt.plural(len(unknown), "operation"))] if unknown else []
    missing += [
        Html("{} does something else every {} steps, and {} were followed").format(
            branch.place, branch.every, syncs.predicted_steps
        )
        for branch in variant.unfollowed_branches
    ]
    missing += [
        Html("{}").format(awaited_in_words(branch, syncs.predicted_steps)) for branch in variant.predicted_awaited
    ]
    per_step = Html("Per step: ") if counts else Html("neither measured nor predicted")
    return per_step + Html(", ").join([*counts, *missing])


def _sites_table(variant: VariantResult) -> Explained:
    """The traced sites, or the predicted ones if none were traced; empty without any."""
    sites = _sites(variant)
    if not sites:
        return Explained("")
    if variant.trace is None or sites is not variant.sync_sites:
        return site_table(sites)
    return site_table(sites, steps=variant.trace.quality.steps, runs=variant.trace.runs)


def _sites(variant: VariantResult) -> Sequence[SiteRow]:
    return variant.sync_sites if variant.syncs.measured_per_step is not None else variant.predicted_sites


def changed(diff: SyncDiff) -> str:
    """The places that sync less or more often than the baseline's: "removes a.py:3, :5; adds b.py:7; a.py:9 2 → 1".

    What happens in some steps only is said as such: "a.py:9 1 → 1 every 4 steps".
    """
    kinds: dict[str, list[SyncChange]] = {"removes": [], "adds": []}
    changed_counts = []
    for site in diff.sites:
        before, now = site.baseline_count_per_step or 0, site.variant_count_per_step or 0
        if before and now and before != now:
            counts = ((before, site.baseline_steps), (now, site.variant_steps))
            was, is_now = (_how_often(count, steps) for count, steps in counts)
            changed_counts.append(f"`{place(site) or unplaced(site)}` {was} → {is_now}")
        elif before != now:
            kinds["removes" if before else "adds"].append(site)
    return "; ".join([*(f"{kind} {_places(sites)}" for kind, sites in kinds.items() if sites), *changed_counts])


def _how_often(per_step: float, steps: SyncedSteps | None) -> str:
    """How often a sync happens: "2" per step, or "1 every 4 steps"."""
    return fmt.count(per_step) if steps is None else often(per_step, steps.in_steps, steps.of_steps, steps.every)


def _places(sites: Sequence[SyncChange]) -> str:
    lines = [(short_place(s.file, None), s.line) for s in sites if s.file is not None and s.line is not None]
    without_line = dict.fromkeys(f"`{place(s) or unplaced(s)}`" for s in sites if s.file is None or s.line is None)
    return ", ".join([*fmt.lines_of(lines), *without_line])
