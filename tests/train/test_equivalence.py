import json
import math

import pytest
import torch

from steptrace.errors import TrainError
from steptrace.train.equivalence import (
    Case,
    cases_of,
    compare_on,
    main,
    relative_error,
    variant_answer,
    verdict_on,
)
from steptrace.train.precision import Precision
from steptrace.workloads.segmentation import RandomMasks

REFERENCE = {"loss._target_": "steptrace.workloads.masked_losses.ReferenceLoss"}
TOLERANCE = {"loss": 1e-5, "gradient": 1e-4}

#: Wrong on purpose: the background is treated as any other class.
WRONG = """
import torch
import torch.nn.functional as F
from torch import nn


class KeepsBackground(nn.Module):
    def forward(self, output, target):
        return F.cross_entropy(output, target, ignore_index=-1)


class ForgetsTheSpecialCase(nn.Module):
    def forward(self, output, target):
        return F.cross_entropy(output, torch.where(target == 9, -1, target), ignore_index=-1)


class NoGradient(nn.Module):
    def forward(self, output, target):
        from steptrace.workloads.masked_losses import IgnoreIndexLoss

        return IgnoreIndexLoss()(output.detach(), target) + 0.0 * output.sum()
"""


@pytest.fixture
def compare(make_config, tmp_path, monkeypatch):
    """Runs all cases of a variant, given by changes of the tiny config, against the reference."""
    (tmp_path / "wrong_losses.py").write_text(WRONG)
    monkeypatch.syspath_prepend(tmp_path)

    def compare_all(changes):
        config, reference = make_config(changes), make_config(REFERENCE)
        cases = [compare_on(config, reference, *case) for case in cases_of(config)]
        return verdict_on(cases, config.precision.tolerance)

    return compare_all


@pytest.mark.parametrize("loss", ["BooleanMaskLoss", "WhereLoss", "SortLoss", "IgnoreIndexLoss"])
def test_the_study_s_variants_are_the_same(compare, loss):
    verdict = compare({"loss._target_": f"steptrace.workloads.masked_losses.{loss}"})
    assert verdict["status"] == "same"
    assert verdict["tolerance"] == TOLERANCE
    assert 0 < verdict["max_rel_err"] <= 1e-4
    names = [case["name"] for case in verdict["cases"]]
    assert names == ["seed 0", "seed 1", *(f"edge case {i}" for i in range(1, 7))]
    zero = verdict["cases"][2]
    assert zero["loss"] == zero["reference_loss"] == zero["loss_rel_err"] == zero["gradient_rel_err"] == 0


def test_a_loss_without_the_background_s_logic_differs(compare):
    verdict = compare({"loss": {"_target_": "wrong_losses.KeepsBackground"}})
    assert verdict["status"] == "differs"
    assert verdict["cases"][0]["gradient_rel_err"] > 0.1
    # The last edge case has neither background nor ignored pixels.
    assert verdict["cases"][-1]["loss_rel_err"] < 1e-5


def test_a_loss_that_is_wrong_in_a_special_case_only_differs(compare):
    verdict = compare({"loss": {"_target_": "wrong_losses.ForgetsTheSpecialCase"}})
    assert verdict["status"] == "differs"
    assert [case["loss_rel_err"] < 1e-5 for case in verdict["cases"] if case["loss_rel_err"] is not None] == [
        *(True, True),  # the seeds
        False,  # one label; only background and all ignored give NaN
        *(True, True, True),
    ]
    assert verdict["loss_rel_err"] is None
    assert verdict["cases"][2]["loss"] is None


def test_the_right_loss_with_the_wrong_gradient_differs(compare):
    verdict = compare({"loss": {"_target_": "wrong_losses.NoGradient"}})
    assert verdict["status"] == "differs"
    assert verdict["loss_rel_err"] < 1e-5
    assert verdict["gradient_rel_err"] == 1


@pytest.mark.parametrize(("autocast", "scaler", "gradient"), [("bf16", False, 0.1), ("fp16", True, 1e-2)])
def test_half_precision_is_held_against_the_same_reference(compare, autocast, scaler, gradient):
    precision = {"precision.autocast": autocast, "precision.grad_scaler": scaler}
    assert compare(precision)["status"] == "differs"  # float32's tolerance
    assert compare({**precision, "precision.tolerance": {"loss": 1e-3, "gradient": gradient}})["status"] == "same"


@pytest.mark.parametrize(("factor", "finite"), [(100.0, True), (1e6, False)])
def test_a_gradient_that_overflows_when_scaled_is_backed_off(factor, finite):
    """100 x 2^16 is no float16, 100 x 2^9 is; 1e6 is none at any scale."""
    model = torch.nn.Linear(4, 4, bias=False)
    precision = Precision("cpu", torch.float16, tf32=False, grad_scaler=True)
    batch = (torch.ones(2, 4), torch.zeros(2))
    answer = variant_answer(model, lambda output, _: factor * output.float().sum(), precision, batch, seed=0)
    assert bool(answer.gradient.isfinite().all()) is finite
    if finite:
        assert torch.equal(answer.gradient, torch.full((16,), 2 * factor).double())


def test_a_reference_with_other_parameters_is_refused(make_config):
    config, reference = make_config(), make_config({**REFERENCE, "model.hidden": 3})
    with pytest.raises(TrainError, match="does not take the variant's weights"):
        compare_on(config, reference, *next(cases_of(config)))


def test_a_data_set_without_edge_cases_is_compared_on_its_seeds(make_config, monkeypatch):
    monkeypatch.delattr(RandomMasks, "edge_cases")
    cases = list(cases_of(make_config()))
    assert [(name, seed) for name, seed, _ in cases] == [("seed 0", 0), ("seed 1", 1)]
    assert not torch.equal(cases[0][2][0], cases[1][2][0])


@pytest.mark.parametrize(
    ("got", "reference", "error"),
    [([3.0, 4.0], [3.0, 4.0], 0), ([0.0, 0.0], [3.0, 4.0], 1), ([3.0, 4.5], [3.0, 4.0], 0.1), ([1e-9], [0.0], 1e-9)],
)
def test_the_relative_error_is_normwise_and_absolute_at_zero(got, reference, error):
    assert relative_error(torch.tensor(got).double(), torch.tensor(reference).double()) == pytest.approx(error)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", ["loss_rel_err", "gradient_rel_err"])
def test_what_is_not_finite_never_passes(bad, place):
    errors = {"loss_rel_err": 0.0, "gradient_rel_err": 0.0, place: bad}
    good = Case("good", 1.0, 1.0, 0.0, 0.0)
    verdict = verdict_on([good, Case("bad", bad, 1.0, **errors), good], TOLERANCE)
    assert verdict["status"] == "differs"
    assert verdict["max_rel_err"] is None
    assert verdict[place] is None
    json.dumps(verdict, allow_nan=False)


def test_an_error_at_the_tolerance_passes_and_above_it_does_not():
    assert verdict_on([Case("at", 1.0, 1.0, 1e-5, 1e-4)], TOLERANCE)["status"] == "same"
    assert verdict_on([Case("above", 1.0, 1.0, 1.01e-5, 0.0)], TOLERANCE)["status"] == "differs"
    assert verdict_on([Case("above", 1.0, 1.0, 0.0, 1.01e-4)], TOLERANCE)["status"] == "differs"


def test_the_command_writes_the_verdict(write_config, tmp_path, capsys):
    config, reference = write_config(), write_config(REFERENCE, name="reference.yaml")
    code = main(["--config", str(config), "--reference", str(reference), "--out", str(tmp_path / "equivalence")])
    assert code == 0
    verdict = json.loads((tmp_path / "equivalence" / "equivalence.json").read_text())
    assert verdict["status"] == "same"
    assert "equivalence: same" in capsys.readouterr().out


def test_the_command_explains_a_missing_config(tmp_path, capsys):
    missing = str(tmp_path / "missing.yaml")
    assert main(["--config", missing, "--reference", missing, "--out", str(tmp_path)]) == 2
    assert "missing.yaml" in capsys.readouterr().err
