"""The verdict on a whole workflow: which runs failed, which gates broke (results/verdict.json and the exit code)."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from steptrace import baseline
from steptrace.gates import Gates, not_run, outcomes


def judge(comparisons: Iterable[Mapping[str, Any]], gates: Gates, *, baselines: Path | None = None) -> dict[str, Any]:
    """Return the content of verdict.json.

    Args:
        comparisons: the content of each study's comparison.json.
        gates: the key `gates` of workflow.yaml.
        baselines: the folder that the baselines' names are relative to; the current one if None.

    Returns:
        `status` (`pass`, `fail`), `runs` counted, `failed` runs and equivalence checks, `differs` (variants whose
        answer is another one: marked, not failed) and `gates` with their outcomes (`held`, `broken`, `skipped`).
    """
    studies = {str(comparison["study"]): comparison for comparison in comparisons}
    failed, differs, total = [], [], 0
    for study, comparison in studies.items():
        for variant in comparison["variants"]:
            for run in variant["runs"]:
                total += 1
                if run["status"] != "ok":
                    error = (run.get("error") or {}).get("error")
                    failed.append(_failure(study, variant["name"], f"run{run['repeat']}", run["status"], error))
            equivalence = variant.get("equivalence") or {}
            if equivalence.get("status") == "failed":
                error = (equivalence.get("failure") or {}).get("error")
                failed.append(_failure(study, variant["name"], "equivalence", "failed", error))
            elif equivalence.get("status") == "differs":
                differs.append({"study": study, "variant": variant["name"], "max_rel_err": equivalence["max_rel_err"]})
    judged = []
    for study in gates:
        # A study may be narrowed away on the command line; names that do not exist were refused before.
        if study not in studies:
            judged += not_run(study, gates)
        else:
            judged += outcomes(studies[study], gates, baseline.for_gates(gates, studies[study], baselines))
    broken = any(outcome["outcome"] == "broken" for outcome in judged)
    return {
        "schema_version": 1,
        "status": "fail" if failed or broken else "pass",
        "runs": total,
        "failed": failed,
        "differs": differs,
        "gates": judged,
    }


def explain(verdict: Mapping[str, Any]) -> str:
    """Return the verdict as lines for a terminal."""
    lines = [f"failed: {f['study']}/{f['variant']} {f['run']}: {f['status']}, {f['error']}" for f in verdict["failed"]]
    lines += [
        f"differs: {d['study']}/{d['variant']}: relative error {_error(d['max_rel_err'])}" for d in verdict["differs"]
    ]
    lines += [f"gate broken: {gate['text']}" for gate in verdict["gates"] if gate["outcome"] == "broken"]
    lines += [
        f"gate skipped: {gate['study']}/{gate['variant']} {gate['key']}: {gate['text']}"
        for gate in verdict["gates"]
        if gate["outcome"] == "skipped"
    ]
    if verdict["status"] == "pass":
        lines.append(f"all {verdict['runs']} runs ok, {len(verdict['gates'])} gates")
    elif verdict["failed"]:
        lines.append("the same command again runs only what failed")
    return "\n".join(lines)


def _error(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.2g}"


def ending(verdict: Mapping[str, Any], folder: Path) -> str | None:
    """Return the last line of a run that only gates made fail: how many are broken, and where that is told.

    Args:
        verdict: the content of verdict.json.
        folder: the working directory, which holds results/ and reports/.
    """
    broken = [gate["study"] for gate in verdict["gates"] if gate["outcome"] == "broken"]
    if verdict["failed"] or not broken:
        return None
    page = folder / "reports" / f"{broken[0] if len(set(broken)) == 1 else 'index'}.html"
    what = "1 gate" if len(broken) == 1 else f"{len(broken)} gates"
    return f"{what} broken: see {folder / 'results' / 'verdict.json'} and {page}"


def _failure(study: str, variant: str, run: str, status: str, error: str | None) -> dict[str, Any]:
    return {"study": study, "variant": variant, "run": run, "status": status, "error": error}
