"""Gates: sync budgets with an allow-list, measured or predicted, and figures against a stored baseline."""

import json

import pytest

from steptrace import baseline
from steptrace.errors import ConfigError, RecordError, SteptraceError
from steptrace.gates import Baselines, check_key, outcomes, over_budget
from steptrace.verdict import judge

ENVIRONMENT = {"cpu": "Epyc", "cpu_count": 8, "gpu": None, "gpu_count": 0, "torch": "2.13.0", "python": "3.12.1"}


def site(line, count=1, **changes):
    place = {"file": "lab/losses.py", "line": line, "function": "MaskLoss.forward", "code": "loss.item()"}
    return {**place, "kind": "d2h_copy", "phase": "forward", "count_per_step": count, **changes}


def comparison(median=10.0, *, measured=None, predicted=None, scale="cpu", **environment):
    entry = {
        "name": "a",
        "digest": "d",
        "step_ms": {"median": median, "p95": 12.0},
        "syncs": {
            "measured_per_step": None if measured is None else sum(s["count_per_step"] for s in measured),
            "predicted_per_step": None if predicted is None else sum(s["count_per_step"] for s in predicted),
        },
        "sync_sites": measured or [],
        "predicted_sites": predicted or [],
        "runs": [],
    }
    return {"study": "s", "scale": scale, "environment": ENVIRONMENT | environment, "variants": [entry]}


def judged(found, key, baselines=None, **limits):
    (outcome,) = outcomes(found, {"s": {"a": {key: limits}}}, baselines)
    return outcome


def test_without_a_gpu_a_new_sync_breaks_the_budget_and_is_named():
    found = comparison(predicted=[site(7), site(9, 2, code="target[mask]", phase="backward")])
    outcome = judged(found, "syncs.per_step", at_most=1)
    assert (outcome["outcome"], outcome["value"]) == ("broken", 3)
    assert outcome["text"] == (
        "s/a syncs.per_step (predicted) is 3, expected at most 1: lab/losses.py:7 in MaskLoss.forward, `loss.item()`: "
        "1 d2h copy; lab/losses.py:9 in MaskLoss.forward, `target[mask]`: 2 d2h copy in backward"
    )


def test_a_figure_is_told_in_digits_that_can_be_read():
    found = comparison()
    found["variants"][0]["profiled_over_unprofiled"] = 2.2433318714689525
    outcome = judged(found, "profiled_over_unprofiled", at_most=1.5)
    assert outcome["text"] == "s/a profiled_over_unprofiled is 2.24333, expected at most 1.5"
    assert outcome["value"] == 2.2433318714689525


def test_allowed_lines_cost_nothing_and_are_not_named():
    found = comparison(predicted=[site(7), site(9)])
    assert judged(found, "syncs.per_step", at_most=0, allow=["losses.py:7", "losses.py:9"])["outcome"] == "held"
    outcome = judged(found, "syncs.per_step", at_most=0, allow=["losses.py:7"])
    assert (outcome["outcome"], outcome["value"]) == ("broken", 1)
    assert "beyond those allowed is 1" in outcome["text"]
    assert "losses.py:7 " not in outcome["text"]


def test_a_measured_count_goes_before_the_prediction():
    found = comparison(measured=[site(7)], predicted=[])
    assert judged(found, "syncs.per_step", at_most=0)["outcome"] == "broken"
    assert judged(found, "syncs.predicted_per_step", at_most=0)["outcome"] == "held"
    assert judged(comparison(), "syncs.per_step", at_most=5)["outcome"] == "broken"  # neither is there


def test_a_sync_without_a_line_counts_against_the_budget_whatever_is_allowed():
    found = comparison(measured=[site(None, file=None, function=None, code=None, label="data")])
    outcome = judged(found, "syncs.per_step", at_most=0, allow=["losses.py", "forward"])
    assert outcome["outcome"] == "broken"
    assert "no line of the program, label 'data': 1 d2h copy" in outcome["text"]


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
def test_entries_of_an_allow_list(entry, covers):
    assert over_budget([site(7)], [entry]) == ([] if covers else [site(7)])


def test_an_allow_list_for_anything_else_breaks_the_gate():
    outcome = judged(comparison(), "step_ms.median", at_most=100, allow=["losses.py"])
    assert outcome["outcome"] == "broken"
    assert "'allow' is for counts of syncs" in outcome["text"]


def test_a_star_is_every_variant():
    found = comparison(predicted=[])
    found["variants"].append({**found["variants"][0], "name": "b"})
    both = outcomes(found, {"s": {"*": {"syncs.per_step": {"at_most": 0}}}})
    assert [(outcome["variant"], outcome["outcome"]) for outcome in both] == [("a", "held"), ("b", "held")]


# Baselines


@pytest.fixture
def stored(tmp_path):
    baseline.save([comparison(10.0)], baseline.path_of("ci", tmp_path))
    return tmp_path


def against(found, folder, most=1.1, **limits):
    gates = {"s": {"a": {"step_ms.median": {"at_most_ratio": most, "baseline": "ci", **limits}}}}
    return judge([found], gates, baselines=folder)["gates"][0]


def test_a_step_time_is_held_against_the_stored_one(stored):
    assert against(comparison(10.9), stored)["outcome"] == "held"
    outcome = against(comparison(11.5), stored)
    assert outcome["outcome"] == "broken"
    assert "step_ms.median is 11.5, 1.150 times the 10 of baseline 'ci', expected at most 1.1 times" in outcome["text"]


def test_a_baseline_that_is_not_there_breaks_its_gate(tmp_path):
    outcome = against(comparison(), tmp_path)
    assert outcome["outcome"] == "broken"
    assert "baselines/ci.json: file is missing" in outcome["text"]


def test_a_variant_that_was_not_stored_breaks_its_gate(stored):
    found = comparison()
    found["variants"][0]["name"] = "new"
    gates = {"s": {"new": {"step_ms.median": {"at_most_ratio": 2, "baseline": "ci"}}}}
    (outcome,) = judge([found], gates, baselines=stored)["gates"]
    assert outcome["outcome"] == "broken"
    assert "does not have it: save it anew" in outcome["text"]


def test_a_step_time_that_is_not_measured_breaks_its_gate(stored):
    found = comparison()
    found["variants"][0]["step_ms"] = None
    assert against(found, stored)["outcome"] == "broken"


@pytest.mark.parametrize("environment", [{"cpu": "Xeon"}, {"gpu": "H200"}, {"scale": "gpu"}])
def test_another_machine_is_not_compared_and_that_is_said(stored, environment):
    outcome = against(comparison(99.0, **environment), stored)
    assert outcome["outcome"] == "skipped"
    assert outcome["text"].startswith("baseline 'ci' is of another machine (")
    assert f"here {next(iter(environment.values()))}" in outcome["text"]


def test_another_version_is_compared(stored):
    found = comparison(99.0, torch="2.14.0")
    assert against(found, stored)["outcome"] == "broken"
    document = baseline.load(baseline.path_of("ci", stored))
    assert baseline.differences(document, found, baseline.VERSIONS) == ["torch 2.13.0, here 2.14.0"]


def test_changes_tell_what_is_only_on_one_side(stored):
    found = comparison(20.0)
    found["variants"][0]["name"] = "b"
    changes = baseline.changes(baseline.load(baseline.path_of("ci", stored)), found)
    assert [(c.variant, c.stored_ms, c.now_ms, c.ratio) for c in changes] == [
        ("b", None, 20.0, None),
        ("a", 10.0, None, None),
    ]
    (change,) = baseline.changes(baseline.load(baseline.path_of("ci", stored)), comparison(20.0))
    assert change.ratio == 2.0


def test_nothing_measured_is_no_baseline(tmp_path):
    with pytest.raises(SteptraceError, match="nothing was measured"):
        baseline.save([{**comparison(), "environment": None}], tmp_path / "x.json")


@pytest.mark.parametrize("content", ["[]", "{}", '{"studies": {}, "schema_version": 99}'])
def test_a_file_that_is_no_baseline_is_refused(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(RecordError):
        baseline.load(tmp_path / "x.json")


def test_outcomes_are_plain_data():
    assert json.dumps(judged(comparison(), "step_ms.median", Baselines(), at_most=1))


@pytest.mark.parametrize("key", ["ratio.low", "syncs.per_step", "gpu_busy_pct", "sections_ms.calc loss", "memory.oom"])
def test_keys_of_figures_are_taken(key):
    check_key(key)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("ratoi.low", "ratio"),
        ("ratio.lo", "ratio.low"),
        ("gpu_busy_pct.median", "gpu_busy_pct"),
        ("sync.per_step", "syncs"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_near_one(key, meant):
    with pytest.raises(ConfigError, match=f"no figure '{key}'") as caught:
        check_key(key)
    assert caught.value.next_step == f"did you mean '{meant}'?"


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("nothing.like.it", "known: batch_bytes, breakdown_ms, communication"),
        ("ratio", "known: ratio.value, ratio.low, ratio.high, ratio.verdict"),
        ("memory", "memory.NAME, as comparison.json has it"),
    ],
)
def test_a_key_that_is_near_none_is_told_with_those_there_are(key, told):
    with pytest.raises(ConfigError, match=f"no figure '{key}'") as caught:
        check_key(key)
    assert told in str(caught.value)
