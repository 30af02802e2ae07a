"""The verdict on a whole workflow: which runs failed, which gates broke (results/verdict.json and the exit code)."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from steptrace import format as fmt
from steptrace.compare.gates import Gates, not_run, outcomes
from steptrace.documents.comparison import Comparison, Differing, Failure, GateOutcome, Verdict
from steptrace.documents.run import LOG_FILE
from steptrace.format import printable


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
            judged += outcomes(studies[study], gates)
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
    """The failed runs and equivalence checks of a study."""
    for variant in comparison.variants:
        ended = [(f"run{run.repeat}", run.status, run.error) for run in variant.runs if run.status != "ok"]
        if variant.equivalence.status == "failed":
            ended.append(("equivalence", "failed", variant.equivalence.failure))
        for name, status, error in ended:
            text = None if error is None else error.error
            yield Failure(study=comparison.study, variant=variant.name, run=name, status=status, error=text)


def explain(verdict: Verdict) -> str:
    """Return the verdict as lines for a terminal."""
    lines = list(_failed(verdict.failed))
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


def _failed(failures: Iterable[Failure]) -> Iterator[str]:
    """A line for the runs of a variant that ended alike, with the log of the first."""
    alike: dict[tuple[str, str, str, str | None], list[str]] = {}
    for f in failures:
        alike.setdefault((f.study, f.variant, f.status, f.error), []).append(f.run)
    for (study, variant, status, error), runs in alike.items():
        log = f" (see results/{study}/{variant}/{runs[0]}/{LOG_FILE})" if status != "not run" else ""
        yield f"failed: {study}/{variant} {', '.join(runs)}: {status}, {error}{log}"


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
