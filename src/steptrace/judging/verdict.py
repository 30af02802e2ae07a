"""The verdict on a whole workflow: which runs failed, which gates broke (results/verdict.json and the exit code)."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, GateOutcome, ProcessError
from steptrace.documents.verdict import Differing, Failure, Verdict
from steptrace.judging import baseline
from steptrace.judging.gates import Gates, not_run, outcomes
from steptrace.terminal import printable


def judge(comparisons: Iterable[Comparison], gates: Gates) -> Verdict:
    """Return the verdict on a workflow.

    Args:
        comparisons: one for each study.
        gates: the key `gates` of workflow.yaml.
    """
    studies = {comparison.study: comparison for comparison in comparisons}
    failed = tuple(failure for comparison in studies.values() for failure in _failures(comparison))
    judged: list[GateOutcome] = []
    for study in gates:
        # A study may be narrowed away on the command line; names that do not exist were refused before.
        if study not in studies:
            judged += not_run(study, gates)
        else:
            judged += outcomes(studies[study], gates, baseline.for_gates(gates, studies[study]))
    broken = any(gate.outcome == "broken" for gate in judged)
    return Verdict(
        status="fail" if failed or broken else "pass",
        runs=sum(len(variant.runs) for comparison in studies.values() for variant in comparison.variants),
        failed=failed,
        differs=tuple(
            Differing(study=study, variant=variant.name, max_rel_err=variant.equivalence.max_rel_err)
            for study, comparison in studies.items()
            for variant in comparison.variants
            if variant.equivalence.status == "differs"
        ),
        gates=tuple(judged),
    )


def _failures(comparison: Comparison) -> Iterator[Failure]:
    """The runs and equivalence checks of a study that did not end well."""
    for variant in comparison.variants:
        place = comparison.study, variant.name
        for run in variant.runs:
            if run.status != "ok":
                yield _failure(place, f"run{run.repeat}", run.status, run.error)
        if variant.equivalence.status == "failed":
            yield _failure(place, "equivalence", "failed", variant.equivalence.failure)


def _failure(place: tuple[str, str], run: str, status: str, error: ProcessError | None) -> Failure:
    study, variant = place
    return Failure(study=study, variant=variant, run=run, status=status, error=None if error is None else error.error)


def explain(verdict: Verdict) -> str:
    """Return the verdict as lines for a terminal."""
    lines = [f"failed: {f.study}/{f.variant} {f.run}: {f.status}, {f.error}" for f in verdict.failed]
    lines += [f"differs: {d.study}/{d.variant}: relative error {_error(d.max_rel_err)}" for d in verdict.differs]
    lines += [f"gate broken: {gate.text}" for gate in verdict.gates if gate.outcome == "broken"]
    lines += [
        f"gate skipped: {gate.study}/{gate.variant} {gate.key}: {gate.text}"
        for gate in verdict.gates
        if gate.outcome == "skipped"
    ]
    if verdict.status == "pass":
        held = sum(gate.outcome == "held" for gate in verdict.gates)
        lines.append(f"all {verdict.runs} runs ok, {fmt.plural(held, 'gate')} held")
    elif verdict.failed:
        lines.append("the same command again runs only what failed")
    return printable("\n".join(lines))


def _error(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.2g}"


def ending(verdict: Verdict, folder: Path) -> str | None:
    """Return the last line of a run that only gates made fail: how many are broken, and where that stands.

    Args:
        verdict: the verdict on it.
        folder: the working directory, which holds results/ and reports/.
    """
    broken = [gate.study for gate in verdict.gates if gate.outcome == "broken"]
    if verdict.failed or not broken:
        return None
    page = folder / "reports" / f"{broken[0] if len(set(broken)) == 1 else 'index'}.html"
    what = "1 gate" if len(broken) == 1 else f"{len(broken)} gates"
    return f"{what} broken: see {folder / 'results' / 'verdict.json'} and {page}"
