"""results/summary.md: what a reader of a pull request is told."""

from typing import Any

import pytest
from msgspec.structs import replace

from documents import fill
from steptrace.compare.gates import judge
from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import ANSWER
from steptrace.workflow import ci

ENVIRONMENT = {"cpu": "A CPU", "torch": "2.13.0", "python": "3.11.7"}


def variant(name: str, **changes: Any) -> dict[str, Any]:
    entry = {
        "name": name,
        "status": "ok",
        "baseline": "plain",
        "runs": [{"repeat": 0, "status": "ok"}],
        "step_ms": {"statistic": "median", "median": 2.0, "low": 1.9, "high": 2.1, "runs": 3},
        "ratio": {"value": 2.0, "low": 1.8, "high": 2.2, "verdict": "faster"},
        "syncs": {"predicted_per_step": 0},
        "equivalence": {"status": "same"},
    }
    return {**entry, **changes}


def study(*variants: dict[str, Any], **changes: Any) -> Comparison:
    baseline = variant("plain", ratio={"value": 1.0, "verdict": "baseline"}, syncs={"predicted_per_step": 3})
    whole = {"study": "s", "title": "A study", "scale": "cpu", "baseline": "plain", "environment": ENVIRONMENT}
    return fill(Comparison, {**whole, "variants": [baseline, *variants], **changes})


def lines_of(whole: Comparison, gates: Any = None) -> list[str]:
    """The summary of a study alone."""
    return ci.summary([whole], judge([whole], gates or {})).splitlines()


def finding(number: int, **changes: Any) -> dict[str, Any]:
    text = {"rule": f"r{number}", "claim": f"claim {number}", "advice": f"advice {number}.", "severity": "warning"}
    return {**text, "variant": "quick", **changes}


def test_the_answer_stands_once_and_what_to_do_follows_it() -> None:
    answer = finding(0, rule=ANSWER, claim="`quick` is faster.", advice="Use `quick`.")
    lines = lines_of(study(variant("quick"), findings=[answer]))
    assert [line for line in lines if line.startswith("- ")] == ["- Use `quick`."]


def test_a_table_and_three_findings() -> None:
    source = {"file": "losses.py", "line": 14}
    findings = [finding(k, source=source if k == 1 else None) for k in range(1, 6)]
    lines = lines_of(study(variant("quick"), findings=findings))
    assert lines[0] == "## steptrace: all runs ended well"
    assert "| `plain` | 2.00 ms | - | - | baseline | 3 | same |" in lines
    assert "| `quick` | 2.00 ms | 2.00× | 1.80 to 2.20 | faster | 0 | same |" in lines
    assert [line for line in lines if line.startswith("- ")] == [
        "- **warning** `quick`: claim 1 (`losses.py:14`). advice 1.",
        "- **warning** `quick`: claim 2. advice 2.",
        "- **warning** `quick`: claim 3. advice 3.",
    ]
    assert "_Scale cpu, A CPU, PyTorch 2.13.0, Python 3.11.7._" in lines


def test_a_table_of_means_says_so() -> None:
    times = {"statistic": "mean", "median": 2.0, "mean": 5.0, "low": 4.9, "high": 5.1, "runs": 3}
    whole = study(variant("quick", step_ms=times))
    lines = lines_of(replace(whole, variants=whole.variants[1:]))
    assert any(line.startswith("| variant | mean step |") for line in lines)
    assert "| `quick` | 5.00 ms | 2.00× | 1.80 to 2.20 | faster | 0 | same |" in lines


def test_a_place_is_named_once() -> None:
    named = finding(1, claim="it waits at losses.py:14", source={"file": "losses.py", "line": 14})
    lines = lines_of(study(variant("quick"), findings=[named]))
    assert "- **warning** `quick`: it waits at losses.py:14. advice 1." in lines


@pytest.mark.parametrize(
    ("held", "head"), [(0, "all runs ended well"), (1, "1 of 2 gates hold"), (2, "all gates hold")]
)
def test_a_gate_that_was_skipped_does_not_hold(held: int, head: str) -> None:
    whole = study(variant("quick"))
    verdict = judge([whole], {"s": {"plain": {"syncs.per_step": {"at_most": 9}, "ratio.low": {"at_most": 9}}}})
    outcomes = ["held"] * held + ["skipped"] * (2 - held)
    gates = tuple(replace(gate, outcome=outcome) for gate, outcome in zip(verdict.gates, outcomes, strict=True))
    lines = ci.summary([whole], replace(verdict, gates=gates, status="pass")).splitlines()
    assert lines[0] == f"## steptrace: {head}"


def test_a_broken_gate_leads() -> None:
    lines = lines_of(study(variant("quick")), {"s": {"plain": {"syncs.per_step": {"at_most": 1}}}})
    assert lines[0] == "## steptrace: not passed"
    assert lines[3].startswith("gate broken: s/plain syncs.per_step (predicted) is 3, expected at most 1")


def test_what_was_not_measured_says_so() -> None:
    failed = [{"repeat": 0, "status": "failed", "error": {"status": "failed", "exit_code": 1}}]
    lines = lines_of(study(variant("bad", status="failed", step_ms=None, runs=failed)))
    (row,) = [line for line in lines if line.startswith("| `bad`")]
    assert row.startswith("| `bad` | not measured |")
    assert "| failed |" in row


def test_many_variants_fit_into_a_comment() -> None:
    lines = lines_of(study(*(variant(f"v{k}") for k in range(200)), findings=[finding(k) for k in range(200)]))
    assert len("\n".join(lines)) < 10_000
    assert "176 more variants in `reports/s.html`." in lines


def test_no_text_of_others_makes_a_table_row_or_html() -> None:
    lines = lines_of(study(title="A | <b>study</b>", findings=[finding(1, claim="a\n| b | <img> and `x<y`")]))
    assert "- **warning** `quick`: a | b | &lt;img> and `x<y`. advice 1." in lines
    assert "### A | &lt;b>study&lt;/b>" in lines
