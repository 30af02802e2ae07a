"""Gates: limits for figures of variants. If one is broken, the workflow's exit code is 1.

A gate holds one figure of one variant in comparison.json against limits. A figure that was not measured breaks its
gate: a gate nobody can check must not look like one that holds.

A count of syncs is more than a look-up. `syncs.per_step` is the measured count, or the predicted one where no GPU
measured any; with an `allow` list, the syncs at those lines are left out, so that a wait that the program needs is no
violation and a new sync is. A predicted count breaks its gate where the program does something else every so many
steps, and fewer were followed.

`at_most_ratio` holds a figure against the same one of an earlier result of the study: `baseline` names its
comparison.json. A step time holds for one machine, so a result of another machine, or at another scale, skips its
gates; versions (PyTorch, driver, ...) may differ.

The verdict on a whole workflow, results/verdict.json and the exit code: which runs failed, and which gates broke.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from steptrace import format as fmt
from steptrace.compare.allowed import over_budget, unfollowed, unnamed
from steptrace.documents.base import read
from steptrace.documents.comparison import (
    Comparison,
    Differing,
    Failure,
    GateOutcome,
    GateReason,
    GateReasonCode,
    Verdict,
)
from steptrace.documents.paths import EVERY_VARIANT, SYNCS_PER_STEP, is_cell_of, value_at
from steptrace.documents.run import LOG_FILE
from steptrace.documents.syncs import SiteRow
from steptrace.documents.variant import VariantResult
from steptrace.errors import ConfigError, RecordError
from steptrace.words.gates import gate_text, not_covered_in_words

#: study -> variant (`*`: every one) -> dotted key of the variant in comparison.json -> limits.
Gates = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]
Limits = Mapping[str, Any]

_MEASURED, _PREDICTED = "syncs.measured_per_step", "syncs.predicted_per_step"
#: Facts of an environment that tell two machines apart.
MACHINE: Final = ("cpu", "cpu_count", "gpu", "gpu_count")


def outcomes(comparison: Comparison, gates: Gates) -> list[GateOutcome]:
    """Judge the gates of one study. A gate that cannot be judged, such as one with a misspelt key, is broken.

    Args:
        comparison: the study.
        gates: the key `gates` of workflow.yaml; the comparison.json files that they name are read.
    """
    judged = []
    for name, keys in gates.get(comparison.study, {}).items():
        variants = _named(name, comparison.variants)
        for key, limits in keys.items():
            judged += [
                _outcome(_gate(comparison.study, variant.name, key, limits), comparison, variant)
                for variant in variants
            ]
            if not variants:
                judged.append(_skipped(_gate(comparison.study, name, key, limits), "did_not_run", name=name))
    return judged


def _named(name: str, variants: Sequence[VariantResult]) -> list[VariantResult]:
    """The variants that a gate names. A name that the matrix multiplies stands for the variants of all cells."""
    if name == EVERY_VARIANT:
        return list(variants)
    same = [variant for variant in variants if variant.name == name]
    return same or [variant for variant in variants if is_cell_of(variant.name, name)]


def not_run(study: str, gates: Gates) -> list[GateOutcome]:
    """The gates of a study that did not run: all skipped."""
    return [
        _skipped(_gate(study, variant, key, limits), "did_not_run", name=study)
        for variant, keys in gates.get(study, {}).items()
        for key, limits in keys.items()
    ]


def _gate(study: str, variant: str, key: str, limits: Limits) -> GateOutcome:
    """A gate before it is judged."""
    return GateOutcome(
        study=study, variant=variant, key=key, limits=dict(limits), value=None, outcome="skipped", text=""
    )


def _skipped(gate: GateOutcome, code: GateReasonCode, **figures: Any) -> GateOutcome:
    """The gate as one that was skipped for this reason."""
    return _worded(replace(gate, reasons=(GateReason(code, figures),)))


def _worded(gate: GateOutcome) -> GateOutcome:
    return replace(gate, text=gate_text(gate))


def _outcome(gate: GateOutcome, comparison: Comparison, variant: VariantResult) -> GateOutcome:
    """The gate with its outcome, its figure, and the reasons if it does not hold."""
    key = gate.key
    limits = gate.limits
    if limits.get("scale", comparison.scale) != comparison.scale:
        return _skipped(gate, "other_scale", scale=limits["scale"])
    before = None
    unusable = None
    if "at_most_ratio" in limits:
        before, unusable = _earlier(str(limits["baseline"]))
    if before is not None and (differing := machines_differ(before, comparison)):
        return _skipped(gate, "other_machine", baseline=limits["baseline"], differing=differing)
    if key == SYNCS_PER_STEP:
        key = _PREDICTED if variant.syncs.measured_per_step is None else _MEASURED
        gate = replace(gate, counted="predicted" if key == _PREDICTED else "measured")
    try:
        value, violations = _value(variant, key, limits)
    except ConfigError as error:
        hint = error.next_step or (error.expected and f"expected {error.expected}")
        unchecked = GateReason("cannot_be_checked", {"error": error.what, "hint": hint})
        return _worded(replace(gate, outcome="broken", reasons=(unchecked,)))
    reasons = _problems(value, limits)
    if key == _PREDICTED and value is not None and (steps := variant.syncs.predicted_steps) is not None:
        reasons += [
            GateReason(
                "branch_not_followed",
                {"file": branch.file, "line": branch.line, "every": branch.every, "steps": steps},
            )
            for branch in unfollowed(variant.predicted_branches, steps, limits.get("allow", ()))
        ]
    if key == _PREDICTED:
        gate = replace(
            gate,
            not_covered=tuple(unnamed(variant.predicted_awaited, limits.get("allow", ()))),
            followed_steps=variant.syncs.predicted_steps,
        )
    if unusable is not None:
        reasons.append(unusable)
    elif "at_most_ratio" in limits:
        reasons += _ratio_problems(value, _value_in(before, variant.name, key), limits)
    if not reasons:
        return replace(gate, outcome="held", value=value)
    sites = tuple(map(_plain_site, violations)) if value else ()
    return _worded(replace(gate, outcome="broken", value=value, reasons=tuple(reasons), sites=sites))


def _plain_site(site: SiteRow) -> SiteRow:
    """A traced or a predicted site without the figures that only one of the two has."""
    return SiteRow(**{name: getattr(site, name) for name in SiteRow.__struct_fields__})


def _earlier(file: str) -> tuple[Comparison | None, GateReason | None]:
    """The earlier result in a file, or why it cannot be used."""
    try:
        return read(Path(file), Comparison), None
    except RecordError as error:
        return None, GateReason("baseline_unusable", {"baseline": file, "error": error.what})


def _value_in(comparison: Comparison | None, variant: str, key: str) -> Any:
    """A variant's figure in an earlier result; None where it has no such variant or row."""
    same = None if comparison is None else comparison.variant(variant)
    with suppress(ConfigError):
        return None if same is None else value_at(same, key)
    return None


def machines_differ(before: Comparison, now: Comparison) -> list[tuple[str, Any, Any]]:
    """The facts in which the machines of two results differ, each with both values; the scale is one of them."""
    old, new = ({key: side.conditions.get(key) for key in ("scale", *MACHINE)} for side in (before, now))
    return [(key, old[key], new[key]) for key in old if old[key] != new[key]]


def _value(variant: VariantResult, key: str, limits: Limits) -> tuple[Any, list[SiteRow]]:
    """A variant's figure, and for a count of syncs the sites that it is made of; allowed ones count for nothing."""
    value = value_at(variant, key)
    if key not in (_MEASURED, _PREDICTED):
        if "allow" in limits:
            raise ConfigError(f"'allow' is for counts of syncs, not for '{key}'")
        return value, []
    sites = variant.sync_sites if key == _MEASURED else variant.predicted_sites
    violations = over_budget(sites, limits.get("allow", ()))
    if value is not None and len(violations) < len(sites):
        counted = variant.sync_sites_over_runs if key == _MEASURED else sites
        allowed = sum(
            over_runs.count_per_step or 0
            for site, over_runs in zip(sites, counted, strict=True)
            if site not in violations
        )
        value = max(round(value - allowed, 9), 0)  # 7 in 10 steps less 7 in 10 steps can leave 1e-16
    return value, violations


def _problems(value: Any, limits: Limits) -> list[GateReason]:
    """The reasons why a figure breaks its limits."""
    reasons = []
    if "equals" in limits and value != limits["equals"]:
        reasons.append(GateReason("not_equal", {"expected": limits["equals"]}))
    number = _is_number(value)
    if "at_least" in limits and not (number and value >= limits["at_least"]):
        reasons.append(GateReason("below", {"at_least": limits["at_least"]}))
    if "at_most" in limits and not (number and value <= limits["at_most"]):
        reasons.append(GateReason("above", {"at_most": limits["at_most"]}))
    return reasons


def _ratio_problems(value: Any, before: Any, limits: Limits) -> list[GateReason]:
    """The reasons why a figure breaks its limit against an earlier result."""
    figures = {"baseline": limits["baseline"], "at_most": limits["at_most_ratio"]}
    if not _is_number(before) or before <= 0:
        return [GateReason("baseline_without_value", figures)]
    figures["before"] = before
    if not _is_number(value):
        return [GateReason("no_value_for_ratio", figures)]
    if value > limits["at_most_ratio"] * before:
        return [GateReason("above_ratio", {**figures, "ratio": value / before})]
    return []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


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
    lines += [f"gate {line}" for gate in verdict.gates for line in not_covered_in_words(gate)]
    if verdict.status == "pass":
        held = sum(gate.outcome == "held" for gate in verdict.gates)
        runs = fmt.plural(verdict.runs, "run")
        lines.append(
            f"{runs if verdict.runs == 1 else f'all {runs}'} ok"
            + (f", {fmt.plural(held, 'gate')} held" if verdict.gates else "")
        )
    elif verdict.failed:
        lines.append("the same command again runs only what failed")
    return fmt.printable("\n".join(lines))


def _failed(failures: Iterable[Failure]) -> Iterator[str]:
    """A line for the runs of a variant that ended alike, with the log of the first."""
    alike: dict[tuple[str, str, str, str | None], list[str]] = {}
    for f in failures:
        alike.setdefault((f.study, f.variant, f.status, f.error), []).append(f.run)
    for (study, variant, status, error), runs in alike.items():
        log = f" (see results/{study}/{variant}/{runs[0]}/{LOG_FILE})" if status != "not run" else ""
        yield f"failed: {study}/{variant} {', '.join(runs)}: {status}, {error}{log}"


def _error(value: float | None) -> str:
    return "not finite" if value is None else fmt.error_bound(value)


def ending(verdict: Verdict, folder: Path) -> str | None:
    """Return the last line for a workflow that failed only by its gates: their number, and where to read about them.

    Args:
        verdict: the verdict on it.
        folder: the working directory, which holds results/ and reports/.
    """
    broken = [gate.study for gate in verdict.gates if gate.outcome == "broken"]
    if verdict.failed or not broken:
        return None
    page = folder / "reports" / f"{broken[0] if len(set(broken)) == 1 else 'index'}.html"
    return f"{fmt.plural(len(broken), 'gate')} broken: see {folder / 'results' / 'verdict.json'} and {page}"
