"""Whether two programs compute the same: by the losses and gradients of their first steps."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from msgspec import to_builtins

from documents import fill
from steptrace.config.resolved import CommandConfig
from steptrace.documents.equivalence import EquivalenceResult, NotComparable, NotComparableCode
from steptrace.documents.probe import StepOutputs
from steptrace.equivalence.programs import verdict_on_programs
from steptrace.jobs import command_checks
from steptrace.jobs.checks import SHARED_VARIABLE
from steptrace.words.equivalence import not_comparable_text
from variant_runs import command_config


def outputs(dtype: str = "float32") -> list[dict[str, Any]]:
    gradient = {"optimizer": "SGD", "values": 100, "norm": 2.0, "projections": [2.0, -2.0] * 4}
    step = {"formats": [dtype], "samples": 8, "depth": 4, "terms": 64, "gradients": [gradient]}
    return [{"loss": 1.0, **copy.deepcopy(step)}, {"loss": 0.9, **copy.deepcopy(step)}]


def typed(steps: list[dict[str, Any]]) -> list[StepOutputs]:
    return [fill(StepOutputs, step) for step in steps]


def verdict(own: list[dict[str, Any]], reference: list[dict[str, Any]]) -> EquivalenceResult:
    return verdict_on_programs(typed(own), typed(reference))


@pytest.mark.parametrize(
    ("change", "status"),
    [(0, "same"), (1e-7, "same"), (1e-4, "differs"), (float("nan"), "differs"), (float("inf"), "differs")],
)
def test_the_first_loss_is_held(change: float, status: str) -> None:
    own = outputs()
    own[0]["loss"] += change
    result = verdict(own, outputs())
    assert result.status == status
    assert (result.max_rel_err == 0) is (change == 0)
    json.dumps(to_builtins(result), allow_nan=False)


def test_the_first_gradient_is_held_in_float32_alone() -> None:
    own = outputs()
    coarse = outputs("bfloat16")
    for step in (own[0], coarse[0]):
        step["gradients"][0]["projections"] = [2.1, -2.1] * 4
    result = verdict(own, outputs())
    assert (result.status, result.gradient_rel_err) == ("differs", pytest.approx(0.05))
    assert verdict(coarse, outputs()).status == "same"
    assert verdict(coarse, outputs()).tolerance.gradient is None


def test_later_losses_may_be_further_apart() -> None:
    own = outputs()
    own[1]["loss"] *= 1 + 5e-6
    assert verdict(own, outputs()).status == "same"
    own[1]["loss"] *= 1 + 5e-3
    result = verdict(own, outputs())
    assert (result.status, result.max_rel_err) == ("differs", pytest.approx(5e-3, rel=0.01))
    assert result.tolerance is not None
    assert result.loss_rel_err == result.max_rel_err > result.tolerance.loss
    own[1]["loss"] = float("nan")
    assert verdict(own, outputs()).loss_rel_err is None


def test_a_later_step_without_one_loss_is_left_out() -> None:
    own = outputs()
    own[1]["loss"] = None
    result = verdict(own, outputs())
    assert (result.status, [case.name for case in result.cases]) == ("same", ["step 1"])


@pytest.mark.parametrize(
    ("change", "of_baseline", "why"),
    [
        ({"samples": 16}, {}, {"code": "other_samples", "samples": 16, "baseline_samples": 8}),
        ({"loss": None}, {}, {"code": "no_scalar_loss"}),
        ({"gradients": []}, {}, {"code": "other_gradients"}),
        ({}, {"loss": float("nan")}, {"code": "baseline_loss_not_finite"}),
    ],
)
def test_what_cannot_be_compared_is_no_silent_same(
    change: dict[str, Any], of_baseline: dict[str, Any], why: dict[str, Any]
) -> None:
    own = outputs()
    baseline = outputs()
    own[0] |= change
    baseline[0] |= of_baseline
    result = verdict(own, baseline)
    assert result.status == "not comparable"
    assert result.not_comparable == NotComparable(**why)
    assert verdict([], outputs()).not_comparable == NotComparable(code="no_steps")


@pytest.mark.parametrize("code", get_args(NotComparableCode))
def test_each_reason_has_words(code: NotComparableCode) -> None:
    text = not_comparable_text(NotComparable(code=code, samples=16, baseline_samples=8))
    assert text
    assert ("16" in text and "8" in text) == (code == "other_samples")


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_gradient_of_any_optimizer_that_is_no_number_differs(wrong: int) -> None:
    own = outputs()
    reference = outputs()
    for step in (own[0], reference[0]):
        step["gradients"] = [copy.deepcopy(step["gradients"][0]) for _ in range(2)]
    own[0]["gradients"][wrong]["projections"][0] = float("nan")
    assert verdict(own, reference).status == "differs"


def test_the_baseline_is_started_once_for_checks_that_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def once(config: CommandConfig, *_: object, **__: object) -> SimpleNamespace:
        started.append(config.variant)
        return SimpleNamespace(ranks=[SimpleNamespace(outputs=typed(outputs()))])

    monkeypatch.setattr(command_checks, "_once", once)
    for name in ("baseline", "other", "third"):
        (tmp_path / f"{name}.yaml").write_text(json.dumps(command_config(name, ["python", "train.py"])))

    (tmp_path / "shared").mkdir()

    def check(name: str, baseline: str = "baseline") -> None:
        (tmp_path / "study" / name / "equivalence").mkdir(parents=True, exist_ok=True)
        arguments = ["--config", f"{tmp_path / name}.yaml", "--reference", f"{tmp_path / baseline}.yaml"]
        out = tmp_path / "study" / name / "equivalence"
        assert command_checks.main(["equivalence", *arguments, "--out", str(out)]) == 0
        assert json.loads((out / "equivalence.json").read_text())["status"] == "same"

    monkeypatch.setenv(SHARED_VARIABLE, str(tmp_path / "shared"))
    for name in ("baseline", "other", "third"):
        check(name)
    assert started == ["baseline", "baseline", "other", "third"]
    check("third", baseline="other")  # in a matrix each cell has a baseline of its own
    assert started[4:] == ["third", "other"]
    monkeypatch.delenv(SHARED_VARIABLE)
    check("third")
    assert started[6:] == ["third", "baseline"]
