"""What a program would do on a GPU that is not there: the section on a page without one."""

from collections.abc import Sequence
from dataclasses import asdict

from steptrace import format as fmt
from steptrace.documents.estimate import Estimate
from steptrace.documents.prediction import PredictedStep
from steptrace.engine.kinds import step_groups
from steptrace.report.page.markup import Html
from steptrace.report.page.rows import site_table
from steptrace.report.page.section import Explained, Parts, note
from steptrace.report.page.table import Figure, figures_table
from steptrace.words.estimate import busy_words, memory_words, reason_words, step_words
from steptrace.words.syncs import step_groups_in_words


def predicted_parts(prediction: PredictedStep, estimates: Sequence[Estimate]) -> Parts:
    """What the same program would do on a GPU that is not there."""
    groups, often = step_groups(prediction.by_step, prediction.sites_by_step)
    kinds = step_groups_in_words(map(asdict, groups), often)
    ranks = len(prediction.by_rank)
    text = f"{fmt.plural(prediction.syncs_per_step, 'sync')} per step" + (f" on average: {kinds}" if kinds else "")
    sentences = [text + (f" on rank 0 of {ranks}; collectives are not estimated." if ranks > 1 else ".")]
    if unknown := prediction.not_covered:
        sentences.append(f"{fmt.plural(len(unknown), 'more place')} may sync: the prediction does not cover them.")
    if early := prediction.early_reads:
        lines = ", ".join(fmt.place(read.file, read.line) for read in early if read.file is not None)
        sentences.append(
            f"A value may be wrong that is read while its copy to the host may be under way: {lines or 'unknown line'}."
        )
    if assumed := prediction.assumed:
        sentences.append(
            f"At {fmt.plural(len(assumed), 'place')} a value or size was assumed; later counts may differ."
        )
    badge = Html('<p><span class="badge warning">predicted, not measured</span> {}</p>').format(" ".join(sentences))
    table = figures_table(
        "GPU",
        {estimate.gpu: estimate.gpu for estimate in estimates},
        [
            Figure("Estimated step", {estimate.gpu: step_words(estimate) for estimate in estimates}),
            Figure("GPU busy", {estimate.gpu: busy_words(estimate) for estimate in estimates}),
            Figure("Limited by", {estimate.gpu: estimate.limited_by for estimate in estimates}),
            Figure("Launches", {estimate.gpu: estimate.launches for estimate in estimates}),
            Figure("Memory", {estimate.gpu: memory_words(estimate) for estimate in estimates}),
        ],
    )
    sites = [site.site for site in prediction.sites]
    computed = "Estimates are computed from the step's operators and the GPU's data sheet."
    about = f"{computed} Data loading, communication between ranks and workspaces of libraries are not included."
    return [
        Explained(badge),
        *([Explained(table)] if estimates else []),
        *(note(f"{estimate.gpu}: {reason_words(estimate)}") for estimate in estimates if estimate.step_ms is None),
        *([site_table(sites)] if sites else []),
        note(about if estimates else "`steptrace run --gpu H100 -- ...` also estimates its step time on a GPU."),
    ]
