"""results/summary.md: the result of a workflow, for a pull request."""

from collections.abc import Iterator, Sequence
from typing import Final

from steptrace import format as fmt
from steptrace.compare.gates import explain
from steptrace.documents.comparison import Comparison, Verdict
from steptrace.documents.finding import ANSWER, Finding
from steptrace.documents.run import Environment
from steptrace.documents.variant import VariantResult
from steptrace.findings.verdict import verdict_of
from steptrace.markdown import clean, table
from steptrace.report.page.findings import first_steps

#: Rows of a study's table; a comment on GitHub holds 65,536 characters.
MOST_ROWS: Final = 25
_MOST_LINES: Final = 20
_MOST_LETTERS: Final = 400


def summary(comparisons: Sequence[Comparison], verdict: Verdict) -> str:
    """Markdown of a few dozen lines: whether all is well, then one table and at most three findings a study."""
    skipped = sum(gate.outcome == "skipped" for gate in verdict.gates)
    held = "all gates hold" if not skipped else f"{len(verdict.gates) - skipped} of {len(verdict.gates)} gates hold"
    head = "all runs ended well" if len(verdict.gates) == skipped else held
    lines = [f"## steptrace: {head if verdict.status == 'pass' else 'not passed'}", ""]
    if verdict.status == "fail":
        reasons = explain(verdict).splitlines()
        lines += ["```", *(fmt.clipped(line, _MOST_LETTERS) for line in reasons[:_MOST_LINES])]
        lines += [f"... {len(reasons) - _MOST_LINES} more lines in results/verdict.json"] * (len(reasons) > _MOST_LINES)
        lines += ["```", ""]
    for study in comparisons:
        lines += _study(study)
    return "\n".join(lines)


def _study(study: Comparison) -> Iterator[str]:
    source = study.sync_counts[0]
    traced = source == "measured"
    verdict = verdict_of(study)
    yield from (f"### {clean(study.title)}", "", " ".join([verdict.sentence, *verdict.details]), "")
    step = "mean step" if study.statistic == "mean" else "step"
    head = ("variant", step, "times as fast", "95 % interval", "verdict", f"syncs ({source})", "answer")
    yield table(head, [_row(variant, traced=traced) for variant in study.variants[:MOST_ROWS]])
    if (more := len(study.variants) - MOST_ROWS) > 0:
        yield f"{fmt.plural(more, 'more variant')} in `reports/{study.study}.html`.\n"
    for finding in first_steps(study):
        yield f"- {clean(finding.advice)}" if finding.rule == ANSWER else _finding(finding)  # its claim stands above
    yield from ("", f"_{_where(study.environment, study.scale)}_", "") if study.environment else ("",)


def _row(variant: VariantResult, *, traced: bool) -> list[str | None]:
    step, ratio, syncs = variant.step_ms, variant.ratio, variant.syncs
    ends = (None, None) if ratio is None else (ratio.low, ratio.high)
    compared = ratio is not None and not variant.is_baseline
    return [
        f"`{variant.name}`",
        None if step is None else fmt.step_time(step.value, step.low, step.high)[0],
        fmt.ratio(ratio.value, *ends) if ratio is not None and compared else "-",
        fmt.ratio_interval(*ends) if compared else "-",
        variant.status if variant.status != "ok" else (None if ratio is None else ratio.verdict) or "no verdict",
        fmt.count(syncs.measured_per_step if traced else syncs.predicted_per_step),
        variant.equivalence.status,
    ]


def _finding(finding: Finding) -> str:
    source = finding.source
    place = "" if source is None or source.file is None else f"{source.file}:{source.line}"
    place = f" (`{place}`)" if place and place not in finding.claim else ""  # claims often name it
    of = f"`{finding.variant}`: " if finding.variant is not None else ""
    return f"- **{finding.severity}** {of}{clean(finding.claim)}{place}. {clean(finding.advice)}"


def _where(environment: Environment, scale: str) -> str:
    versions = f"PyTorch {environment.torch}, Python {environment.python}"
    return clean(f"Scale {scale}, {environment.gpu or environment.cpu}, {versions}.")
