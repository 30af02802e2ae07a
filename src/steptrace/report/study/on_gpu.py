"""The section "On a GPU" of a study that ran without one: results from a GPU beside it, else what to expect there."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.report.page.markup import Html, render
from steptrace.report.study.headline import headline
from steptrace.report.study.model import SAME_OPERATORS, has_traced_syncs, load_study, machine

_COLLECTED: Final = re.compile(r"Collected on (\d{4}-\d{2}-\d{2})")


@dataclass(frozen=True)
class Reference:
    """A study's committed results from a GPU: the folder below reports/reference, its date, and what was found."""

    machine: str
    date: str | None
    study: Comparison
    headline: str


@dataclass(frozen=True)
class Expectation:
    """What a GPU is expected to change for one variant, by its predicted syncs and its operators per step."""

    variant: VariantResult
    syncs: int | None
    fewer: int | None
    operators: float | None
    sentences: tuple[str, ...]


def on_gpu(study: Comparison, references: Sequence[Path | str]) -> Html | None:
    """Committed results of the same study on GPUs; without any, expectations, marked as such.

    None for a study that was traced on a GPU itself, and for one that nothing was predicted of.

    Args:
        study: the comparison.
        references: comparison.json files of the same study in folders of reports/reference.
    """
    found = measured_elsewhere(study, references)
    known = any(variant.syncs.predicted_per_step is not None for variant in study.variants)
    if has_traced_syncs(study) or (not found and (study.on_simulated_gpu or not known)):
        return None
    return render(
        "study/on_gpu",
        study=study,
        here=machine(study),
        references=[(reference, _beside(study, reference.study)) for reference in found],
        expected=() if found else expectations(study),
        blocked=_blocked,
    )


def measured_elsewhere(study: Comparison, references: Sequence[Path | str]) -> list[Reference]:
    """The committed results from GPUs that stand beside a study's own; none where it was traced on a GPU itself."""
    if has_traced_syncs(study):
        return []
    return [reference for path in references if (reference := _load(Path(path))) is not None]


def _load(path: Path) -> Reference | None:
    """One machine's results; None if they are not from a GPU but from a rehearsal without one."""
    study, notes = load_study(path), path.parents[1] / "README.md"
    if study.environment is None or study.environment.gpu is None or study.on_simulated_gpu:
        return None
    date = _COLLECTED.search(notes.read_text(encoding="utf-8")) if notes.is_file() else None
    return Reference(path.resolve().parents[1].name, None if date is None else date[1], study, headline(study))


def _beside(here: Comparison, there: Comparison) -> list[tuple[VariantResult, VariantResult | None]]:
    """The variants of this study, each with that of the same name from the other machine."""
    others = {variant.name: variant for variant in there.variants}
    return [(variant, others.get(variant.name)) for variant in here.variants]


def _blocked(variant: VariantResult) -> float | None:
    """Time that a step's syncs block the host, in ns."""
    known = [site.blocked_ns_per_step for site in variant.sync_sites if site.blocked_ns_per_step is not None]
    return sum(known) if known else 0.0 if variant.syncs.measured_per_step == 0 else None


def expectations(study: Comparison) -> list[Expectation]:
    """What each variant is expected to gain or lose on a GPU beside its baseline."""
    by_name = {variant.name: variant for variant in study.variants}
    return [_expected(variant, by_name.get(variant.baseline)) for variant in study.variants]


def _expected(variant: VariantResult, baseline: VariantResult | None) -> Expectation:
    syncs, operators = variant.syncs.predicted_per_step, variant.operators_per_step
    base = None if baseline is None or variant.is_baseline else baseline
    before = None if base is None else base.syncs.predicted_per_step
    fewer = None if syncs is None or before is None else before - syncs
    said = []
    if syncs is not None:
        said.append(_of_syncs(syncs, fewer))
    if base is not None and operators and base.operators_per_step:
        said.append(_of_operators(operators / base.operators_per_step))
    if variant.predicted_unknown:
        count = fmt.plural(len(variant.predicted_unknown), "operation")
        said.append(f"{count} could not be judged, so there may be more waits.")
    return Expectation(variant, syncs, fewer, operators, tuple(filter(None, said)))


def _of_syncs(syncs: int, fewer: int | None) -> str:
    waits = fmt.plural(syncs, "time")
    if fewer is None:  # the baseline
        return (
            f"The host waits {waits} a step until all queued work is done; the GPU then idles until the next launch."
            if syncs
            else "The host never waits inside a step: it can launch ahead of the GPU."
        )
    if fewer == 0:
        return "As many waits as the baseline: by its syncs no difference is expected." if syncs else "No wait, either."
    if fewer < 0:
        return f"{fmt.plural(-fewer, 'wait')} more than the baseline: expected to be no faster."
    if syncs == 0:
        return "No wait is left: the host can launch ahead of the GPU. Expected to gain most by its syncs."
    return (
        f"{fmt.plural(fewer, 'wait')} fewer, but {syncs} left: the next one often waits for the same work, so little "
        "gain is expected."
    )


def _of_operators(share: float) -> str:
    if share * SAME_OPERATORS <= 1:
        return f"{fmt.decimal(1 / share)} times fewer operators to launch."
    return f"{fmt.decimal(share)} times more operators to launch." if share >= SAME_OPERATORS else ""
