"""Gates: sync budgets with an allow-list, measured or predicted, and figures against an earlier result."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from documents import fill
from figures import codes_in, figures_in
from steptrace.compare.allowed import over_budget
from steptrace.compare.gates import explain, judge, outcomes
from steptrace.documents.base import write
from steptrace.documents.comparison import Comparison, GateOutcome
from steptrace.documents.paths import check_key, value_at
from steptrace.documents.syncs import PredictedSite
from steptrace.documents.variant import VariantResult
from steptrace.errors import ConfigError

ENVIRONMENT = {"cpu": "Epyc", "cpu_count": 8, "gpu": None, "gpu_count": 0, "torch": "2.13.0", "python": "3.12.1"}


def site(line: int | None, count: int = 1, **changes: Any) -> dict[str, Any]:
    place = {"file": "lab/losses.py", "line": line, "function": "MaskLoss.forward", "code": "loss.item()"}
    return {**place, "kind": "d2h_copy", "phase": "forward", "count_per_step": count, **changes}


def comparison(variant: dict[str, Any] | None = None, *, scale: str = "cpu", **environment: Any) -> Comparison:
    """A study with one variant `a` of 10 ms, or with another one."""
    entry = {"name": "a", "digest": "d", "step_ms": {"statistic": "median", "median": 10.0, "p95": 12.0}} | (
        variant or {}
    )
    facts = ENVIRONMENT | environment
    return fill(Comparison, {"study": "s", "scale": scale, "environment": facts, "variants": [entry]})


def taking(median: float | None) -> dict[str, Any]:
    return {"step_ms": None if median is None else {"statistic": "median", "median": median, "p95": 12.0}}


def measured(*sites: dict[str, Any]) -> dict[str, Any]:
    count = sum(site["count_per_step"] for site in sites)
    return {"syncs": {"measured_per_step": count}, "trace": {"syncs": {"sites": sites}}}


def predicted(*sites: dict[str, Any]) -> dict[str, Any]:
    count = sum(site["count_per_step"] for site in sites)
    return {"syncs": {"predicted_per_step": count}, "predicted_sites": sites}


def judged(compared: Comparison, key: str, **limits: Any) -> GateOutcome:
    (outcome,) = outcomes(compared, {"s": {"a": {key: limits}}})
    return outcome


def codes(outcome: GateOutcome) -> list[str]:
    """The reasons why a gate is broken, or was skipped."""
    return [reason.code for reason in outcome.reasons]


def test_a_gate_on_a_variant_that_the_matrix_multiplies_holds_for_each_of_its_cells() -> None:
    cells = [
        {"name": name, **taking(10.0 + number)} for number, name in enumerate(("a__n-1", "a__n-2", "ab", "b__n-1"))
    ]
    compared = fill(Comparison, {"study": "s", "scale": "cpu", "environment": ENVIRONMENT, "variants": cells})
    gates = outcomes(compared, {"s": {"a": {"step_ms.median": {"at_most": 10.5}}}})
    assert [(gate.variant, gate.outcome) for gate in gates] == [("a__n-1", "held"), ("a__n-2", "broken")]


def test_without_a_gpu_a_new_sync_breaks_the_budget_and_is_named() -> None:
    compared = comparison(predicted(site(7), site(9, 2, code="target[mask]", phase="backward")))
    outcome = judged(compared, "syncs.per_step", at_most=1)
    assert (outcome.outcome, outcome.value) == ("broken", 3)
    assert (codes(outcome), outcome.counted) == (["above"], "predicted")
    assert [(place.line, place.count_per_step) for place in outcome.sites] == [(7, 1), (9, 2)]
    assert codes_in(outcome.text) == ["loss.item()", "target[mask]"]
    for part in ("s/a syncs.per_step", "lab/losses.py:7", "lab/losses.py:9", "MaskLoss.forward"):
        assert part in outcome.text


def test_figure_is_shown_with_six_digits() -> None:
    compared = comparison({"profiled_over_unprofiled": 2.2433318714689525})
    outcome = judged(compared, "profiled_over_unprofiled", at_most=1.5)
    assert figures_in(outcome.text) == [2.24333, 1.5]
    assert outcome.value == 2.2433318714689525


def test_allowed_lines_do_not_count_and_are_not_named() -> None:
    compared = comparison(predicted(site(7), site(9)))
    assert judged(compared, "syncs.per_step", at_most=0, allow=["losses.py:7", "losses.py:9"]).outcome == "held"
    outcome = judged(compared, "syncs.per_step", at_most=0, allow=["losses.py:7"])
    assert (outcome.outcome, outcome.value) == ("broken", 1)
    assert [place.line for place in outcome.sites] == [9]
    assert "losses.py:7 " not in outcome.text


def test_counts_of_some_steps_that_are_all_allowed_leave_nothing() -> None:
    counts = (0.1, 0.7, 1.4)  # 1, 7 and 14 in 10 steps
    sites = [site(line) | {"count_per_step": count} for line, count in enumerate(counts)]
    compared = comparison({"syncs": {"measured_per_step": 2.2}, "trace": {"syncs": {"sites": sites}}})
    outcome = judged(compared, "syncs.per_step", at_most=0, allow=["losses.py"])
    assert (outcome.outcome, outcome.value) == ("held", 0)


def test_an_allowed_sync_of_one_run_hides_no_sync_of_all_runs() -> None:
    """Over the runs the count per step is 1; that of a line that one of three runs has is 1 in that run alone."""
    sites = [site(7, runs=3, count=4, count_per_step=1.0), site(9, runs=1, count=0, count_per_step=1.0)]
    trace = {"runs": 3, "quality": {"steps": 4}, "syncs": {"sites": sites}}
    outcome = judged(
        comparison({"syncs": {"measured_per_step": 1.0}, "trace": trace}),
        "syncs.per_step",
        at_most=0,
        allow=["losses.py:9"],
    )
    assert (outcome.outcome, outcome.value) == ("broken", 1)
    assert [place.line for place in outcome.sites] == [7]


def test_measured_count_is_used_before_the_predicted_one() -> None:
    compared = comparison(measured(site(7)) | {"syncs": {"measured_per_step": 1, "predicted_per_step": 0}})
    assert judged(compared, "syncs.per_step", at_most=0).outcome == "broken"
    assert judged(compared, "syncs.predicted_per_step", at_most=0).outcome == "held"
    assert judged(comparison(), "syncs.per_step", at_most=5).outcome == "broken"  # neither is there


def test_a_sync_without_a_line_counts_against_the_budget_whatever_is_allowed() -> None:
    compared = comparison(measured(site(None, file=None, function=None, code=None, label="data")))
    outcome = judged(compared, "syncs.per_step", at_most=0, allow=["losses.py", "forward"])
    assert outcome.outcome == "broken"
    assert [(place.file, place.label) for place in outcome.sites] == [(None, "data")]
    assert "'data'" in outcome.text


@pytest.mark.parametrize(
    ("entry", "covers"),
    [
        ("losses.py:7", True),
        ("lab/losses.py:7", True),
        ("losses.py:8", False),
        ("other_losses.py:7", False),
        ("losses.py", True),
        ("elsewhere/losses.py", False),
        ("forward", True),
        ("MaskLoss.forward", True),
        ("OtherLoss.forward", False),
        ("backward", False),
    ],
)
def test_entries_of_an_allow_list(entry: str, *, covers: bool) -> None:
    place = fill(PredictedSite, site(7))
    assert over_budget([place], [entry]) == ([] if covers else [place])


def test_an_allow_list_for_anything_else_breaks_the_gate() -> None:
    outcome = judged(comparison(), "step_ms.median", at_most=100, allow=["losses.py"])
    assert outcome.outcome == "broken"
    assert codes(outcome) == ["cannot_be_checked"]
    assert "'allow'" in outcome.text


def test_star_applies_a_gate_to_every_variant() -> None:
    (one,) = comparison(predicted()).variants
    both = outcomes(
        replace(comparison(), variants=(one, replace(one, name="b"))), {"s": {"*": {"syncs.per_step": {"at_most": 0}}}}
    )
    assert [(outcome.variant, outcome.outcome) for outcome in both] == [("a", "held"), ("b", "held")]


def test_a_row_of_a_table_is_named_by_its_key() -> None:
    label = {"label": "a.b", "host_ns": 5, "count": 1, "device_ns": None}
    compared = comparison({"trace": {"labels": [label], "overview": {"kind": "host", "parts_ns": {"loss": 7}}}})
    assert judged(compared, "trace.labels.a.b.host_ns", at_most=5).outcome == "held"
    assert judged(compared, "trace.overview.parts_ns.loss", at_most=6).outcome == "broken"
    missing = judged(compared, "trace.labels.other.host_ns", at_most=5)
    assert (missing.outcome, codes(missing)) == ("broken", ["cannot_be_checked"])
    assert "'other'" in missing.text
    assert missing.text.endswith("a.b")  # the rows that there are
    near = judged(compared, "trace.overview.parts_ns.los", at_most=6).text
    assert near.index("'los'") < near.index("'loss'")


# Baselines


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "kept.json", comparison())


def against(compared: Comparison, variant: str = "a") -> GateOutcome:
    gates = {"s": {variant: {"step_ms.median": {"at_most_ratio": 1.1, "baseline": "kept.json"}}}}
    return judge([compared], gates).gates[0]


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("variant", "environment", "outcome", "reasons", "figures"),
    [
        (taking(10.9), {}, "held", [], []),
        (taking(11.5), {}, "broken", ["above_ratio"], [11.5, 1.15, 10, 1.1]),
        (taking(99.0), {"torch": "2.14.0"}, "broken", ["above_ratio"], [99, 9.9, 10, 1.1]),  # another version counts
        (taking(None), {}, "broken", ["no_value_for_ratio"], [1.1, 10]),
        ({"name": "new"}, {}, "broken", ["baseline_without_value"], [10, 1.1]),
    ],
)
def test_a_step_time_is_held_against_the_stored_one(
    variant: dict[str, Any], environment: dict[str, str], outcome: str, reasons: list[str], figures: list[float]
) -> None:
    judgement = against(comparison(variant, **environment), variant.get("name", "a"))
    assert (judgement.outcome, codes(judgement)) == (outcome, reasons)
    assert figures_in(judgement.text) == figures


def test_a_baseline_that_is_not_there_breaks_its_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = against(comparison())
    assert outcome.outcome == "broken"
    assert codes(outcome) == ["baseline_unusable"]
    assert "'kept.json'" in outcome.text


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("environment", [{"cpu": "Xeon"}, {"gpu": "H200"}, {"scale": "gpu"}])
def test_baseline_of_another_machine_skips_the_gate_and_names_the_difference(environment: dict[str, str]) -> None:
    outcome = against(comparison(taking(99.0), **environment))
    assert outcome.outcome == "skipped"
    assert codes(outcome) == ["other_machine"]
    assert "'kept.json'" in outcome.text
    assert f"here {next(iter(environment.values()))}" in outcome.text


@pytest.mark.parametrize(
    "key",
    [
        "ratio.low",
        "syncs.per_step",
        "gpu_busy_pct",
        "trace.labels.calc loss.host_ns",
        "trace.queues.7.empty_ns",
        "trace.copies.Memcpy HtoD (Pinned -> Device).ns",
        "trace.collectives.by_name.all_reduce, default_pg.sum_ns",
    ],
)
def test_keys_of_figures_are_accepted(key: str) -> None:
    check_key(key)


def test_a_row_is_named_by_its_keys_without_the_gpu_s_number() -> None:
    queue = {"activities": 4, "unlinked": 0, "span_ns": 9, "max": 1, "full_ns": 0}
    queues = [{**queue, "device": 3, "stream": stream, "empty_ns": 10 * stream} for stream in (7, 9)]
    names = [{"collective": "all_reduce", "group": group, "sum_ns": ns} for group, ns in (("pg", 5), (None, 6))]
    variant = fill(VariantResult, {"trace": {"queues": queues, "collectives": {"by_name": names}}})
    assert value_at(variant, "trace.queues.7.empty_ns") == 70
    with pytest.raises(ConfigError, match="there is no row '8' here"):
        value_at(variant, "trace.queues.8.empty_ns")
    assert value_at(fill(VariantResult, {"trace": {"queues": []}}), "trace.queues.8.empty_ns") is None
    assert value_at(variant, "trace.collectives.by_name.all_reduce, pg.sum_ns") == 5
    assert value_at(variant, "trace.collectives.by_name.all_reduce.sum_ns") == 6
    other = {"device": 4, "stream": 7, "empty_ns": 1}
    variant = fill(VariantResult, {"trace": {"queues": [*queues, {**queue, **other}]}})
    with pytest.raises(ConfigError, match="'7' is the name of 2 rows"):
        value_at(variant, "trace.queues.7.empty_ns")
    assert value_at(variant, "trace.queues.9.empty_ns") == 90


def test_of_names_that_begin_alike_the_longer_one_is_meant() -> None:
    labels = [{"label": name, "host_ns": ns} for name, ns in (("model", 9), ("model.head", 4))]
    variant = fill(VariantResult, {"trace": {"labels": labels}})
    assert value_at(variant, "trace.labels.model.host_ns") == 9
    assert value_at(variant, "trace.labels.model.head.host_ns") == 4


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("ratoi.low", "next: did you mean 'ratio'?"),
        ("ratio.lo", "next: did you mean 'low'?"),
        ("sync.per_step", "next: did you mean 'syncs.per_step'?"),
        ("syncs.per_stp", "next: did you mean 'syncs.per_step'?"),
        ("nothing.like.it", "choose one of: baseline, batch_bytes"),
        ("gpu_busy_pct.median", "leave out '.median'"),
        ("ratio", "choose one of: high, low, value, verdict"),
        ("trace.labels.calc loss", "KEY.label or KEY.count"),
    ],
)
def test_unknown_key_is_refused_and_the_nearest_or_all_are_suggested(key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"no figure '{key}'") as caught:
        check_key(key)
    assert message in str(caught.value)


def test_a_gate_on_graph_breaks_is_broken_by_one_and_where_nothing_is_known_of_them() -> None:
    def of(breaks: int | None) -> str:
        figures = {"graph_breaks": breaks, "recompilations": None, "compile_ms": None}
        return judged(comparison({"compiled": figures}), "compiled.graph_breaks", at_most=0).outcome

    assert [of(0), of(1), of(None)] == ["held", "broken", "broken"]
    assert judged(comparison(), "compiled.graph_breaks", at_most=0).outcome == "broken"  # nothing is compiled


def test_a_gate_says_which_lines_wait_for_a_step_that_was_not_followed() -> None:
    """As the budget of `steptrace predict` does: the gate holds, and the line is named unless it is allowed."""
    awaited = {"file": "train.py", "line": 31, "awaits": "number", "in_steps": 970}
    variant = {"syncs": {"predicted_per_step": 0, "predicted_steps": 30}, "predicted_awaited": [awaited]}
    for limits, lines in (({}, [31]), ({"allow": ["train.py:31"]}, [])):
        gate = judged(comparison(variant), "syncs.per_step", at_most=0, **limits)
        assert gate.outcome == "held"
        assert [branch.line for branch in gate.not_covered] == lines
        assert gate.followed_steps == 30
        verdict = judge([comparison(variant)], {"s": {"a": {"syncs.per_step": {"at_most": 0, **limits}}}})
        assert verdict.status == "pass"
        assert ("train.py:31" in explain(verdict)) is bool(lines)
