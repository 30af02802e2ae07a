"""channels_last and torch.compile: the model is prepared as asked, a run with each ends well, failures are told."""

import sys
import types

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from steptrace.config.schema import StepConfig
from steptrace.engine.process_facts import compiled_graphs
from steptrace.errors import TrainError
from steptrace.lab import precision
from steptrace.lab.precision import check_compiled, prepared
from steptrace.lab.setup import training
from steptrace.run_folder import read_run, read_steps

#: A model of one library call: the compiler has nothing to generate, which would take a C++ compiler half a minute.
PLAIN = {"model": {"_target_": "torch.nn.Conv2d", "in_channels": 3, "out_channels": 10, "kernel_size": 1}}
# The compiler warns of what it does itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def losses(out):
    return read_steps(out)["loss"].tolist()


#: A user's module that has graphs made, but run as they are: generating code for them takes seconds.
UNCOMPILED = """
import torch._inductor.compile_fx
from steptrace.workloads.masked_losses import IgnoreIndexLoss

torch._inductor.compile_fx.compile_fx = lambda graph, *_, **__: graph.forward


class Loss(IgnoreIndexLoss):
    pass
"""


def test_channels_last_orders_the_weights_and_the_images_and_changes_no_answer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    image = torch.randn(2, 3, 6, 6)
    expected = model(image)
    seen = []
    model[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    made = prepared(model, StepConfig(channels_last=True))
    torch.testing.assert_close(made(image), expected)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_what_is_no_batch_of_images_stays_as_it_is():
    model = nn.Linear(4, 3)
    prepared(model, StepConfig(channels_last=True))
    assert model(torch.ones(2, 4)).shape == (2, 3)


def test_by_default_nothing_is_arranged():
    model = nn.Conv2d(3, 4, 3)
    assert prepared(model, StepConfig()) is model
    assert not model._forward_pre_hooks


def test_a_run_in_channels_last_trains_as_one_without(trained):
    last = trained({"step.channels_last": True}, to="last")
    first = trained(to="first")
    assert losses(last) == pytest.approx(losses(first), rel=1e-5)


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
def test_a_compiled_run_is_compiled_before_it_is_timed(trained, tmp_path):
    (tmp_path / "uncompiled.py").write_text(UNCOMPILED)
    changes = {"loss": {"_target_": "uncompiled.Loss"}, "python_path": [str(tmp_path)]}
    compiled = trained({**PLAIN, **changes, "step.compile": "default"})  # without a graph it would have failed
    record = read_run(compiled)
    assert record.warnings == ()
    assert OmegaConf.create(record.config).step.compile == "default"
    assert losses(compiled) == pytest.approx(losses(trained(PLAIN, to="eager")), rel=1e-5)


def test_what_the_compiler_cannot_do_ends_the_training_with_its_message(make_config, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no C++ compiler on this machine")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", fails)
    with training(make_config({**PLAIN, "step.compile": "default"}), 7) as parts:
        inputs, _ = next(parts.batches)
        with pytest.raises(Exception, match=r"no C\+\+ compiler on this machine"):
            parts.model(inputs)


def test_a_model_that_ran_eagerly_all_the_same_is_no_compiled_variant(monkeypatch):
    monkeypatch.setattr(precision, "compiled_graphs", lambda: 0)
    check_compiled(StepConfig())
    with pytest.raises(TrainError, match="no graph"):
        check_compiled(StepConfig(compile="default"))


def test_a_process_that_never_compiled_has_made_no_graphs(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", None)
    assert compiled_graphs() == 0
    counters = {"stats": {"unique_graphs": 2}}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", types.SimpleNamespace(counters=counters))
    assert compiled_graphs() == 2


@pytest.mark.parametrize("how", [{"fused": True}, {"foreach": True}, {"foreach": False, "fused": False}])
def test_each_form_of_the_optimizer_trains(trained, how):
    optimizer = {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 0.01, **how}
    assert read_steps(trained({"optimizer": optimizer}))["loss"].notna().all()
