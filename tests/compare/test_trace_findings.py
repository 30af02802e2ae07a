"""What the traces of a variant's runs agree on."""

from types import SimpleNamespace
from typing import Any

from documents import fill
from steptrace.compare.study import trace_findings
from steptrace.documents.summary import Summary


def finding(rule: str, cost: int | None, **changes: Any) -> dict[str, Any]:
    share = None if cost is None else cost / 1000
    fields = {"rule": rule, "claim": f"{rule} {cost}", "cost_ns_per_step": cost, "cost_share": share, "source": None}
    fields["evidence"] = ["seen"]
    return fields | changes


def summary(part: dict[str, Any]) -> Summary:
    return fill(Summary, part)


def variant(*runs: list[dict[str, Any]] | None) -> Any:
    """One entry a run: the findings of its trace, None for a run whose trace was not analysed."""
    summaries = [None if found is None else summary({"traces": [{"findings": found}], "ranks": None}) for found in runs]
    return SimpleNamespace(measured=[SimpleNamespace(summary=found) for found in summaries])


def test_a_finding_in_most_analysed_runs_is_the_variants_with_the_median_cost() -> None:
    often, once = [finding("copy_bound", cost) for cost in (30, 10, 20)], finding("gpu_idle", 500)
    (found,) = trace_findings(variant([often[0], once], [often[1]], [often[2]], None))
    assert (found.rule, found.cost_ns_per_step, found.claim) == ("copy_bound", 20, "copy_bound 20")
    assert found.cost_share == 0.02


def test_of_several_ranks_the_finding_with_the_highest_cost_counts() -> None:
    ranks = [{"rank": rank, "findings": [finding("missing_overlap", 10 * rank)]} for rank in (3, 4, 2)]
    (found,) = trace_findings(
        SimpleNamespace(measured=[SimpleNamespace(summary=summary({"traces": ranks, "ranks": None}))])
    )
    assert (found.cost_ns_per_step, found.evidence) == (40, ("seen", "on rank 4"))


def test_a_finding_in_half_of_the_runs_or_fewer_is_left_out() -> None:
    assert trace_findings(variant([finding("copy_bound", 10)], [])) == []
    assert trace_findings(variant([], None)) == []
    assert trace_findings(variant(None)) == []


def test_one_rule_at_two_lines_is_two_findings() -> None:
    lines = [finding("sync_bound", 10, source={"file": "a.py", "line": line}) for line in (1, 2)]
    assert len(trace_findings(variant(lines, lines))) == 2


def test_a_cost_that_one_run_does_not_know_is_not_known() -> None:
    (found,) = trace_findings(variant([finding("low_headroom", None)], [finding("low_headroom", 5)]))
    assert found.cost_ns_per_step is None


def test_findings_on_the_ranks_together_count_too_and_summaries_without_findings_do_not_fail() -> None:
    run = SimpleNamespace(summary=summary({"traces": [{}], "ranks": {"findings": [finding("straggler", 7)]}}))
    (found,) = trace_findings(SimpleNamespace(measured=[run]))  # type: ignore[arg-type]
    assert found.rule == "straggler"


def test_a_straggler_that_is_another_rank_in_every_run_is_chance() -> None:
    runs = [
        SimpleNamespace(
            summary=summary({"traces": [{}], "ranks": {"findings": [finding("straggler", 7, source={"rank": rank})]}})
        )
        for rank in (0, 1)
    ]
    assert trace_findings(SimpleNamespace(measured=runs)) == []  # type: ignore[arg-type]
