"""Whether two programs compute the same: by the losses and gradients of their first steps."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steptrace.equivalence.programs import verdict_on_programs as verdict
from steptrace.launch import main as launch_main
from steptrace.launch.main import SHARED_VARIABLE


def outputs(dtype: str = "float32") -> list[dict[str, Any]]:
    gradient = {"optimizer": "SGD", "values": 100, "norm": 2.0, "projections": [2.0, -2.0] * 4}
    step = {"formats": [dtype], "samples": 8, "depth": 4, "terms": 64, "gradients": [gradient]}
    return [{"loss": 1.0, **copy.deepcopy(step)}, {"loss": 0.9, **copy.deepcopy(step)}]


@pytest.mark.parametrize(
    ("change", "status"),
    [(0, "same"), (1e-7, "same"), (1e-4, "differs"), (float("nan"), "differs"), (float("inf"), "differs")],
)
def test_the_first_loss_is_held(change: float, status: str) -> None:
    own = outputs()
    own[0]["loss"] += change
    result = verdict(own, outputs())
    assert result["status"] == status
    assert (result["max_rel_err"] == 0) is (change == 0)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_the_first_gradient_is_held_in_float32_alone() -> None:
    own, coarse = outputs(), outputs("bfloat16")
    for step in (own[0], coarse[0]):
        step["gradients"][0]["projections"] = [2.1, -2.1] * 4
    result = verdict(own, outputs())
    assert (result["status"], result["gradient_rel_err"]) == ("differs", pytest.approx(0.05))
    assert verdict(coarse, outputs())["status"] == "same"
    assert verdict(coarse, outputs())["tolerance"].keys() == {"loss"}


def test_later_losses_may_be_further_apart() -> None:
    own = outputs()
    own[1]["loss"] *= 1 + 5e-6
    assert verdict(own, outputs())["status"] == "same"
    own[1]["loss"] *= 1 + 5e-3
    result = verdict(own, outputs())
    assert (result["status"], result["max_rel_err"]) == ("differs", pytest.approx(5e-3, rel=0.01))
    assert result["loss_rel_err"] == result["max_rel_err"] > result["tolerance"]["loss"]
    own[1]["loss"] = float("nan")
    assert verdict(own, outputs())["loss_rel_err"] is None


def test_a_later_step_without_one_loss_is_left_out() -> None:
    own = outputs()
    own[1]["loss"] = None
    result = verdict(own, outputs())
    assert (result["status"], [case["name"] for case in result["cases"]]) == ("same", ["step 1"])


@pytest.mark.parametrize(
    ("change", "of_baseline", "reason"),
    [
        ({"samples": 16}, {}, "a step has 16 samples, the baseline's has 8"),
        ({"loss": None}, {}, "its loss is unknown"),
        ({"gradients": []}, {}, "the gradients' sizes differ"),
        ({}, {"loss": float("nan")}, "the baseline's own loss is infinite or NaN"),
    ],
)
def test_what_cannot_be_compared_is_no_silent_same(
    change: dict[str, Any], of_baseline: dict[str, Any], reason: str
) -> None:
    own, baseline = outputs(), outputs()
    own[0] |= change
    baseline[0] |= of_baseline
    result = verdict(own, baseline)
    assert result["status"] == "not comparable"
    assert reason in result["reason"]
    assert verdict([], outputs())["status"] == "not comparable"


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_gradient_of_any_optimizer_that_is_no_number_differs(wrong: int) -> None:
    own, reference = outputs(), outputs()
    for step in (own[0], reference[0]):
        step["gradients"] = [copy.deepcopy(step["gradients"][0]) for _ in range(2)]
    own[0]["gradients"][wrong]["projections"][0] = float("nan")
    assert verdict(own, reference)["status"] == "differs"


def test_the_baseline_is_started_once_for_checks_that_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def once(config: dict[str, Any], *_: object, **__: object) -> SimpleNamespace:
        started.append(config["name"])
        return SimpleNamespace(ranks=[SimpleNamespace(outputs=outputs())])

    monkeypatch.setattr(launch_main, "_once", once)
    for name in ("baseline", "other", "third"):
        followed = {"followed": {"compared_steps": 2}}
        (tmp_path / f"{name}.yaml").write_text(json.dumps({"name": name, **followed}))

    (tmp_path / "shared").mkdir()

    def check(name: str, baseline: str = "baseline") -> None:
        (tmp_path / "study" / name / "equivalence").mkdir(parents=True, exist_ok=True)
        arguments = ["--config", f"{tmp_path / name}.yaml", "--reference", f"{tmp_path / baseline}.yaml"]
        out = tmp_path / "study" / name / "equivalence"
        assert launch_main.main(["equivalence", *arguments, "--out", str(out)]) == 0
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
