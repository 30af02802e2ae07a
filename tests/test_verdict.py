"""The verdict: what fails a workflow and what only marks a variant."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from documents import fill
from figures import figures_in
from steptrace.compare.gates import ending, explain, judge
from steptrace.documents.base import read, write
from steptrace.documents.comparison import Comparison, Differing, Failure, Verdict

JOB = (sys.executable, str(Path(__file__).parents[1] / "workflow" / "scripts" / "verdict.py"))


def run(repeat: int, status: str = "ok", error: str | None = None) -> dict[str, Any]:
    return {"repeat": repeat, "status": status, "error": error and {"status": status, "error": error}}


def variant(name: str, **changes: Any) -> dict[str, Any]:
    entry = {
        "name": name,
        "status": "ok",
        "runs": [run(0), run(1)],
        "ratio": {"value": 2.0, "low": 1.8, "high": 2.2, "verdict": "faster"},
        "syncs": {"predicted_per_step": 0},
        "equivalence": {"status": "same", "max_rel_err": 1e-7},
    }
    return {**entry, **changes}


def comparison(*variants: dict[str, Any], study: str = "s") -> Comparison:
    return fill(Comparison, {"study": study, "scale": "cpu", "variants": variants})


def gate(key: str, **limits: Any) -> dict[str, Any]:
    return {"s": {"a": {key: limits}}}


def test_verdict_passes_where_all_runs_are_ok_and_gates_hold() -> None:
    verdict = judge([comparison(variant("a"), variant("b"))], gate("ratio.low", at_least=1.5))
    assert verdict.status == "pass"
    assert verdict.runs == 4
    assert [outcome.outcome for outcome in verdict.gates] == ["held"]
    assert figures_in(explain(verdict)) == [4, 1]


def test_without_gates_none_is_said_to_be_held() -> None:
    text = explain(judge([comparison(variant("a"))], {}))
    assert figures_in(text) == [2]
    assert "gate" not in text


@pytest.mark.parametrize("status", ["failed", "out of memory", "killed", "not run"])
def test_one_run_that_is_not_ok_fails_the_verdict(status: str) -> None:
    broken = variant("b", runs=[run(0), run(1, status, "ValueError: no")])
    verdict = judge([comparison(variant("a"), broken)], {})
    assert verdict.status == "fail"
    assert verdict.failed == (Failure(study="s", variant="b", run="run1", status=status, error="ValueError: no"),)
    (line,) = (line for line in explain(verdict).splitlines() if "s/b" in line)
    assert all(fact in line for fact in ("run1", status, "ValueError: no"))
    assert ("results/s/b/run1/train.log" in line) == (status != "not run")


def test_runs_that_ended_alike_are_one_line_with_the_log_of_the_first() -> None:
    broken = variant("b", runs=[run(0, "failed", "no"), run(1, "out of memory", "full"), run(2, "failed", "no")])
    failed, full, *_ = explain(judge([comparison(variant("a"), broken)], {})).splitlines()
    assert re.findall(r"\brun\d", failed) == ["run0", "run2", "run0"]  # the last one is its log
    assert re.findall(r"\brun\d", full) == ["run1", "run1"]
    assert "out of memory" in full


def test_failed_equivalence_check_fails_and_a_difference_only_marks() -> None:
    failed = variant("a", equivalence={"status": "failed", "failure": {"status": "failed", "error": "KeyError: 'x'"}})
    verdict = judge([comparison(failed)], {})
    assert (verdict.status, verdict.failed[0].run) == ("fail", "equivalence")
    assert verdict.failed[0].error == "KeyError: 'x'"
    verdict = judge([comparison(variant("a", equivalence={"status": "differs", "max_rel_err": 0.5234567}))], {})
    assert verdict.status == "pass"
    assert verdict.differs == (Differing(study="s", variant="a", max_rel_err=0.5234567),)
    (line,) = (line for line in explain(verdict).splitlines() if "s/a" in line)
    assert figures_in(line) == [0.52]


@pytest.mark.parametrize(
    ("key", "limits", "outcome", "text"),
    [
        ("ratio.low", {"at_least": 1.8}, "held", ""),
        ("ratio.low", {"at_least": 1.9}, "broken", "s/a ratio.low is 1.8, expected at least 1.9"),
        ("ratio.high", {"at_most": 2.1}, "broken", "is 2.2, expected at most 2.1"),
        ("ratio.value", {"at_least": 1.9, "at_most": 2.1}, "held", ""),
        ("ratio.verdict", {"equals": "faster"}, "held", ""),
        ("equivalence.status", {"equals": "differs"}, "broken", "is same, expected differs"),
        ("ratio.verdict", {"at_least": 1}, "broken", "is faster, expected at least 1"),  # text is no number
        ("syncs.measured_per_step", {"at_most": 0}, "broken", "is not measured, expected at most 0"),
        ("syncs.measured_per_step", {"at_most": 0, "scale": "gpu"}, "skipped", "for scale gpu alone"),
        ("input.share", {"at_most": 1}, "broken", "is not measured"),  # nothing of the group
        ("syncs.predicted_per_step", {"at_most": 0}, "held", ""),
        (
            "ratio.lo",
            {"at_least": 1},
            "broken",
            "there is no 'lo' in comparison.json, expected one of value, low, high",
        ),
    ],
)
def test_gate_outcome_by_key_and_limits(key: str, limits: dict[str, Any], outcome: str, text: str) -> None:
    verdict = judge([comparison(variant("a"))], gate(key, **limits))
    assert verdict.gates[0].outcome == outcome
    assert text in verdict.gates[0].text
    assert verdict.status == ("fail" if outcome == "broken" else "pass")


def test_gates_of_what_did_not_run_are_skipped() -> None:
    gates = {"other": {"a": {"ratio.low": {"at_least": 1}}}, "s": {"b": {"ratio.low": {"at_least": 1}}}}
    verdict = judge([comparison(variant("a"))], gates)
    assert [outcome.outcome for outcome in verdict.gates] == ["skipped", "skipped"]
    assert verdict.status == "pass"
    assert [line for line in explain(verdict).splitlines() if "other/a ratio.low" in line]


@pytest.mark.parametrize("what", ["write", "enforce"])
def test_the_job_refuses_a_file_of_another_version(what: str, tmp_path: Path) -> None:
    file = tmp_path / "document.json"
    file.write_text('{"study": "s", "variants": []}')
    command = [*JOB, what, str(file), "--out", str(tmp_path / "verdict.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    kind = {"write": "Comparison", "enforce": "Verdict"}[what]
    assert [named for named in (str(file), kind) if named not in done.stderr] == []
    assert not (tmp_path / "verdict.json").exists()


def test_the_job_writes_the_verdict_and_ends_by_it(tmp_path: Path) -> None:
    study = tmp_path / "comparison.json"
    file = tmp_path / "verdict.json"
    write(study, comparison(variant("a")))
    gates = json.dumps(gate("ratio.low", at_least=1.9))
    subprocess.run([*JOB, "write", study, "--gates", gates, "--out", file], check=True)
    assert read(file, Verdict) == judge([comparison(variant("a"))], json.loads(gates))
    done = subprocess.run([*JOB, "enforce", file], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert "s/a ratio.low" in line
    assert figures_in(line) == [1.8, 1.9]


def files_in(line: str | None) -> list[str]:
    """The paths of files in a line."""
    return re.findall(r"/\S+\.\w+", line or "")


def test_ending_names_the_page_where_only_gates_are_broken() -> None:
    here = Path("/here")
    gates = gate("ratio.low", at_least=1.9)
    verdict = judge([comparison(variant("a"))], gates)
    one = ending(verdict, here)
    assert figures_in(str(one)) == [1]
    assert files_in(one) == ["/here/results/verdict.json", "/here/reports/s.html"]
    both = judge([comparison(variant("a")), comparison(variant("a"), study="t")], gates | {"t": gates["s"]})
    two = ending(both, here)
    assert figures_in(str(two)) == [2]
    assert files_in(two) == ["/here/results/verdict.json", "/here/reports/index.html"]
    assert ending(judge([comparison(variant("a"))], {}), here) is None
    assert ending(judge([comparison(variant("a", runs=[run(0, "failed", "no")]))], gates), here) is None
