import json
import math
import runpy
import sys
from itertools import islice

import pytest
import torch
from msgspec import to_builtins

from steptrace.equivalence import main as program
from steptrace.equivalence.main import main
from steptrace.equivalence.outputs import relative_error, same_dropout, variant_outputs
from steptrace.equivalence.reference import cases_of, compare_on
from steptrace.equivalence.verdict import Case, verdict_on
from steptrace.errors import TrainError
from steptrace.lab.precision import NumberFormats
from steptrace.workloads.segmentation import RandomMasks

HELD = ("loss", "gradient", "predictions", "parameters")
REFERENCE = {"loss._target_": "steptrace.workloads.masked_losses.ReferenceLoss"}
RIGHT = "steptrace.workloads.masked_losses.IgnoreIndexLoss"
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


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.only = nn.Conv2d(3, 10, 1)

    def forward(self, image):
        return self.only(image)


class Shifted(Plain):
    def forward(self, image):
        return self.only(image) + 1


class Detached(Plain):
    def forward(self, image):
        return nn.functional.conv2d(image, self.only.weight.detach(), self.only.bias)


class Cut(Plain):
    def forward(self, image):
        return self.only(image)[..., :-1]


class Total(nn.Module):
    def forward(self, output, target):
        return output.sum()


class Speechless(Plain):
    def forward(self, image):
        return None


class Dropping(Plain):
    def __init__(self, module):
        super().__init__()
        self.drop = getattr(nn, module)(0.3)

    def forward(self, image):
        return self.only(self.drop(image))


# Its forward pass changes a buffer, and that the next one.
class Normed(Plain):
    def __init__(self):
        super().__init__()
        self.only = nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 10, 3, padding=1))


# In bfloat16 the bias is rounded to -1, and its units lie below 0; in float32 and float64 above.
class Kink(Plain):
    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.only.weight)
        nn.init.constant_(self.only.bias, -1 + 2**-10)

    def forward(self, image):
        return torch.relu(self.only(image) + 1 - 2**-11) + image.mean(1, keepdim=True)


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

    def compare_all(changes, model=None, cases=None):
        config = make_config(changes)
        own = {"model": model if isinstance(model, dict) else {"_target_": model}} if model else {}
        reference = make_config({**REFERENCE, **own})
        return verdict_on([compare_on(config, reference, *case) for case in islice(cases_of(config), cases)])

    return compare_all


@pytest.mark.parametrize("loss", ["BooleanMaskLoss", "WhereLoss", "SortLoss", "IgnoreIndexLoss"])
def test_the_study_s_variants_are_the_same(compare, loss):
    verdict = compare({"loss._target_": f"steptrace.workloads.masked_losses.{loss}"})
    assert verdict.status == "same"
    assert {name: getattr(verdict.tolerance, name) for name in TOLERANCE} == TOLERANCE
    assert 0 < verdict.max_rel_err <= 1e-6
    assert 0 < verdict.parameters_rel_err <= 1e-4
    names = [case.name for case in verdict.cases]
    assert names == ["seed 0", "seed 1", *(f"edge case {i}" for i in range(1, 7))]
    zero = verdict.cases[2]
    assert zero.loss == zero.reference_loss == zero.loss_rel_err == zero.gradient_rel_err == 0


def test_a_loss_without_the_background_s_logic_differs(compare):
    verdict = compare({"loss": {"_target_": "wrong_losses.KeepsBackground"}})
    assert verdict.status == "differs"
    assert verdict.cases[0].gradient_rel_err > 0.1
    # The last edge case has neither background nor ignored pixels.
    assert verdict.cases[-1].loss_rel_err < 1e-5


def test_a_loss_that_is_wrong_in_a_special_case_only_differs(compare):
    verdict = compare({"loss": {"_target_": "wrong_losses.ForgetsTheSpecialCase"}})
    assert verdict.status == "differs"
    assert [case.loss_rel_err < 1e-5 for case in verdict.cases if case.loss_rel_err is not None] == [
        *(True, True),  # the seeds
        False,  # one label; only background and all ignored give NaN
        *(True, True, True),
    ]
    assert verdict.loss_rel_err is None
    assert verdict.cases[2].loss is None


@pytest.mark.parametrize(
    ("part", "wrong", "right", "differing", "least", "most"),
    [
        ("loss", "NoGradient", ["loss"], "gradient", 1, 1),
        ("model", "Shifted", ["loss", "gradient", "parameters"], "predictions", 0.1, math.inf),
        ("model", "Detached", ["predictions"], "parameters", 0.1, math.inf),
    ],
)
def test_an_answer_that_is_wrong_in_one_respect_differs_in_it(compare, part, wrong, right, differing, least, most):
    model = "wrong_losses.Plain" if part == "model" else None
    verdict = compare({part: {"_target_": f"wrong_losses.{wrong}"}}, model=model)
    assert verdict.status == "differs"
    assert max(getattr(verdict, f"{name}_rel_err") for name in right) < 1e-6
    assert least <= getattr(verdict, f"{differing}_rel_err") <= most


@pytest.mark.parametrize(("autocast", "scaler"), [(None, False), ("bf16", False), ("fp16", True)])
@pytest.mark.parametrize(("loss", "status"), [(RIGHT, "same"), ("wrong_losses.KeepsBackground", "differs")])
def test_tolerances_follow_from_the_format(compare, autocast, scaler, loss, status):
    precision = {"precision.autocast": autocast, "precision.grad_scaler": scaler}
    free = {"precision.tolerance": {"loss": None, "gradient": None}}
    verdict = compare({**precision, **free, "loss": {"_target_": loss}})
    assert verdict.status == status
    allowed = verdict.tolerance
    assert allowed.loss < 1e-5 < allowed.gradient or autocast is None  # the loss is float32 in any case
    assert allowed.gradient < (2e-2 if autocast else 2e-5)
    if loss == RIGHT:
        assert compare(precision).status == ("differs" if autocast else "same")  # float32's numbers


def test_float16_without_scaled_gradients_differs(compare):
    """Over 131,072 pixels the gradient's elements are below float16's normal numbers."""
    changes = {"precision.autocast": "fp16", "precision.tolerance": {"loss": None, "gradient": None}}
    changes |= {"data.dataset.image_size": 256, "equivalence.seeds": [0]}
    assert compare({**changes, "precision.grad_scaler": True}, cases=1).status == "same"
    verdict = compare(changes, cases=1)
    assert verdict.status == "differs"
    assert verdict.gradient_rel_err > verdict.tolerance.gradient


def test_a_unit_at_its_kink_does_not_make_a_right_network_differ(compare):
    """In bfloat16 it lies below 0 and in float64 above, and a gradient by its weights is there or not."""
    changes = {"model": {"_target_": "wrong_losses.Kink"}, "equivalence.seeds": [0], "precision.autocast": "bf16"}
    changes["precision.tolerance"] = {"loss": None, "gradient": None}
    verdict = compare(changes, model="wrong_losses.Kink")
    assert verdict.status == "same"
    assert verdict.parameters_rel_err < verdict.tolerance.parameters < 1e-3


def test_a_network_that_remembers_its_last_pass_is_the_same(compare):
    verdict = compare({"model": {"_target_": "wrong_losses.Normed"}}, model="wrong_losses.Normed")
    assert verdict.status == "same"
    assert verdict.parameters_rel_err < 1e-4


def test_dropout_drops_the_same_for_variant_and_reference(compare):
    for dropout in ("Dropout", "Dropout2d"):
        model = {"_target_": "wrong_losses.Dropping", "module": dropout}
        verdict = compare({"model": model}, model=model)
        assert verdict.status == "same"
        assert verdict.parameters_rel_err > 0


def test_dropout_is_drawn_on_the_cpu_whatever_the_device():
    """Another device's generator gives other numbers for the same seed: nothing may depend on it."""
    model = torch.nn.Sequential(torch.nn.Dropout(0.5))
    values = torch.ones(1, 64)
    with same_dropout(model, 3):
        torch.rand(5)  # what the device's generator has given meanwhile
        once = model(values)
    with same_dropout(model, 3):
        assert torch.equal(model(values.double()).float(), once)
    assert set(once.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(model(values), once) or "forward" not in vars(model[0])


@pytest.mark.parametrize(("factor", "finite"), [(100.0, True), (1e6, False)])
def test_a_gradient_that_overflows_when_scaled_is_backed_off(factor, finite):
    """100 x 2^16 is no float16, 100 x 2^9 is; 1e6 is none at any scale."""
    model = torch.nn.Linear(4, 4, bias=False)
    precision = NumberFormats("cpu", torch.float16, tf32=False, grad_scaler=True)
    batch = (torch.ones(2, 4), torch.zeros(2))
    outputs = variant_outputs(model, lambda output, _: factor * output.float().sum(), precision, batch, seed=0)
    assert bool(outputs.gradient[0].isfinite().all()) is finite
    if finite:
        assert torch.equal(outputs.gradient[0], torch.full((2, 4), factor))
        assert torch.equal(outputs.parameters, torch.full((16,), 2 * factor))


@pytest.mark.parametrize(
    ("model", "message"),
    [("Speechless", "returns NoneType, without a tensor"), ("Cut", "have different shapes")],
)
def test_a_model_whose_predictions_cannot_be_compared_is_refused(compare, model, message):
    changes = {"model": {"_target_": f"wrong_losses.{model}"}, "loss": {"_target_": "wrong_losses.Total"}}
    with pytest.raises(TrainError, match=message):
        compare(changes, model="wrong_losses.Plain")


def test_a_reference_with_other_parameters_is_refused(make_config):
    config = make_config()
    reference = make_config({**REFERENCE, "model.hidden": 3})
    with pytest.raises(TrainError, match="do not fit the reference's model"):
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


def case(name="case", **errors):
    return Case(name, 1.0, 1.0, dict.fromkeys(HELD, 0.0) | errors, ALLOWED)


ALLOWED = {"loss": 1e-5, "gradient": 1e-4, "predictions": 1e-3, "parameters": 1e-2}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("held", HELD)
def test_what_is_not_finite_never_passes(bad, held):
    verdict = verdict_on([case(), case(**{held: bad}), case()])
    assert verdict.status == "differs"
    assert getattr(verdict, f"{held}_rel_err") is None
    assert (verdict.max_rel_err is None) == (held in ("loss", "gradient"))
    json.dumps(to_builtins(verdict), allow_nan=False)


@pytest.mark.parametrize("held", HELD)
def test_an_error_at_the_tolerance_passes_and_above_it_does_not(held):
    assert verdict_on([case(**{held: ALLOWED[held]})]).status == "same"
    assert verdict_on([case(), case(**{held: 1.01 * ALLOWED[held]})]).status == "differs"


def test_the_reported_case_is_the_one_nearest_to_its_tolerance():
    tight = Case("tight", 1.0, 1.0, dict.fromkeys(HELD, 1e-6), dict.fromkeys(HELD, 1e-6))
    verdict = verdict_on([case(loss=5e-6), tight])
    assert (verdict.loss_rel_err, verdict.tolerance.loss) == (1e-6, 1e-6)


def test_the_command_writes_the_verdict(write_config, tmp_path, capsys, monkeypatch):
    config = write_config()
    reference = write_config(REFERENCE, name="reference.yaml")
    arguments = ["--config", str(config), "--reference", str(reference), "--out", str(tmp_path / "equivalence")]
    monkeypatch.setattr(sys, "argv", ["equivalence.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(program.__file__, run_name="__main__")  # as `python -m` does
    assert stopped.value.code == 0
    verdict = json.loads((tmp_path / "equivalence" / "equivalence.json").read_text())
    assert verdict["status"] == "same"
    assert "equivalence: same" in capsys.readouterr().out


def test_the_command_explains_a_missing_config(tmp_path, capsys):
    missing = str(tmp_path / "missing.yaml")
    assert main(["--config", missing, "--reference", missing, "--out", str(tmp_path)]) == 2
    assert "missing.yaml" in capsys.readouterr().err
