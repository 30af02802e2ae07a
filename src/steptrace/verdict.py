"""The verdict on a whole workflow: which runs failed, which gates broke (results/verdict.json and the exit code).

A gate holds one figure of one variant in comparison.json against limits. A figure that was not measured breaks its
gate: a gate nobody can check must not look like one that holds.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from steptrace.errors import ConfigError

#: study -> variant -> dotted key of the variant in comparison.json -> limits.
Gates = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]


def judge(comparisons: Iterable[Mapping[str, Any]], gates: Gates) -> dict[str, Any]:
    """Return the content of verdict.json.

    Args:
        comparisons: the content of each study's comparison.json.
        gates: the key `gates` of workflow.yaml.

    Returns:
        `status` (`pass`, `fail`), `runs` counted, `failed` runs and equivalence checks, `differs` (variants whose
        answer is another one: marked, not failed) and `gates` with their outcomes (`held`, `broken`, `skipped`).

    Raises:
        ConfigError: a gate names a study or variant that did not run.
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
                failed.append(_failure(study, variant["name"], "equivalence", "failed", equivalence.get("error")))
            elif equivalence.get("status") == "differs":
                differs.append({"study": study, "variant": variant["name"], "max_rel_err": equivalence["max_rel_err"]})
    outcomes = [_outcome(studies, *gate) for gate in _flat(gates)]
    broken = any(outcome["outcome"] == "broken" for outcome in outcomes)
    return {
        "schema_version": 1,
        "status": "fail" if failed or broken else "pass",
        "runs": total,
        "failed": failed,
        "differs": differs,
        "gates": outcomes,
    }


def explain(verdict: Mapping[str, Any]) -> str:
    """Return the verdict as lines for a terminal."""
    lines = [f"failed: {f['study']}/{f['variant']} {f['run']}: {f['status']}, {f['error']}" for f in verdict["failed"]]
    lines += [f"differs: {d['study']}/{d['variant']}: relative error {d['max_rel_err']}" for d in verdict["differs"]]
    lines += [f"gate broken: {gate['text']}" for gate in verdict["gates"] if gate["outcome"] == "broken"]
    if verdict["status"] == "pass":
        lines.append(f"all {verdict['runs']} runs ok, {len(verdict['gates'])} gates")
    elif verdict["failed"]:
        lines.append("the same command again runs only what failed")
    return "\n".join(lines)


def _failure(study: str, variant: str, run: str, status: str, error: str | None) -> dict[str, Any]:
    return {"study": study, "variant": variant, "run": run, "status": status, "error": error}


def _flat(gates: Gates) -> list[tuple[str, str, str, Mapping[str, Any]]]:
    return [
        (study, variant, key, limits)
        for study, variants in gates.items()
        for variant, keys in variants.items()
        for key, limits in keys.items()
    ]


def _outcome(
    studies: Mapping[str, Mapping[str, Any]], study: str, variant: str, key: str, limits: Mapping[str, Any]
) -> dict[str, Any]:
    gate = {"study": study, "variant": variant, "key": key, "limits": dict(limits)}
    comparison = studies.get(study)
    if comparison is None:
        # Narrowed away on the command line; check_gates has refused names that do not exist.
        return {**gate, "value": None, "outcome": "skipped", "text": f"{study} did not run"}
    if limits.get("scale", comparison["scale"]) != comparison["scale"]:
        return {**gate, "value": None, "outcome": "skipped", "text": f"for scale {limits['scale']} alone"}
    entry = next((entry for entry in comparison["variants"] if entry["name"] == variant), None)
    if entry is None:
        return {**gate, "value": None, "outcome": "skipped", "text": f"{variant} did not run"}
    value = _lookup(entry, key)
    problems = _problems(value, limits)
    text = f"{study}/{variant} {key} is {'not measured' if value is None else value}, {' and '.join(problems)}"
    return {**gate, "value": value, "outcome": "broken" if problems else "held", "text": text if problems else ""}


def _problems(value: Any, limits: Mapping[str, Any]) -> list[str]:
    problems = []
    if "equals" in limits and value != limits["equals"]:
        problems.append(f"expected {limits['equals']}")
    number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    if "at_least" in limits and not (number and value >= limits["at_least"]):
        problems.append(f"expected at least {limits['at_least']}")
    if "at_most" in limits and not (number and value <= limits["at_most"]):
        problems.append(f"expected at most {limits['at_most']}")
    return problems


def _lookup(entry: Mapping[str, Any], key: str) -> Any:
    node: Any = entry
    for part in key.split("."):
        if not isinstance(node, Mapping):
            return None  # the whole group was not measured
        if part not in node:
            raise ConfigError(
                f"a gate's key '{key}' is not in comparison.json",
                where="config/workflow.yaml",
                expected=f"one of {', '.join(map(str, node))}",
            )
        node = node[part]
    return node
