"""PyTorch's warnings of syncs become counts and lines; a warning that a CPU can raise stands in for the real one."""

import json
import warnings

import pytest
import torch
from torch.profiler import record_function

from steptrace.engine.call_site import Site
from steptrace.engine.step_recorders import OpLine, SyncWatcher, summary
from steptrace.train.main import main

#: PyTorch says this in C++, once for every call, of a result that does not have the size of its `out=`.
RESIZED = "An output with one or more elements was resized"


def resize(x):
    return torch.add(x, 1, out=torch.zeros(x.numel() + 1))


class Doubled(torch.autograd.Function):
    """Calls an operator that warns in its backward pass."""

    @staticmethod
    def forward(_ctx, x):
        return x * 2

    @staticmethod
    def backward(_ctx, grad):
        return resize(grad) * 2


def test_every_warning_has_its_operator_label_and_line():
    watcher = SyncWatcher(RESIZED)
    with watcher.step(), record_function("loss"):
        for _ in range(2):
            resize(torch.ones(3))
        torch.ones(3).exp_()
    with watcher.step():
        resize(torch.ones(3))
    first, second = watcher.by_step
    assert [(line.op, line.label, line.site.function) for line in first] == [("aten::add", "loss", "resize")] * 2
    assert [line.label for line in second] == [None]
    assert first[0].site.line == resize.__code__.co_firstlineno + 1


def test_a_warning_of_the_backward_pass_is_not_blamed_on_the_call_of_backward():
    x = torch.ones(3, requires_grad=True)
    watcher = SyncWatcher(RESIZED)
    with watcher.step():
        loss = Doubled.apply(x).sum()
        with record_function("backward"):
            loss.backward()
    ((line,),) = watcher.by_step
    assert (line.op, line.phase, line.site.function) == ("aten::add", "backward", "resize")


def test_a_warning_outside_any_operator_has_the_line_of_its_call():
    watcher = SyncWatcher("wait")
    with watcher.step():
        warnings.warn("a wait", stacklevel=1)
    ((line,),) = watcher.by_step
    assert (line.op, line.site.file, line.site.function) == (
        "",
        __file__,
        "test_a_warning_outside_any_operator_has_the_line_of_its_call",
    )


def test_filters_are_as_before_and_other_warnings_are_shown():
    before, shown = list(warnings.filters), warnings.showwarning
    with pytest.warns(UserWarning, match="something else"), SyncWatcher("wait").step():
        warnings.warn("something else", stacklevel=1)
    assert (warnings.filters, warnings.showwarning) == (before, shown)


def test_the_record(tmp_path):
    place = tmp_path / "own.py"
    place.write_text("def loss(x):\n    return x.nonzero()\n")
    with_line = OpLine("aten::nonzero", "mask", "loss", Site(str(place), 2, "loss"))
    without_line = OpLine("", None, None, None)
    record = summary([[with_line, without_line, with_line], [with_line]])
    assert json.loads(json.dumps(record)) == record
    assert (record["steps"], record["count"], record["per_step"], record["by_step"]) == (2, 4, 2, [3, 1])
    first, second = record["sites"]
    assert (first["line"], first["code"], first["op"], first["count"]) == (2, "return x.nonzero()", "aten::nonzero", 3)
    assert second == dict.fromkeys(("file", "line", "function", "code", "op", "label", "phase")) | {"count": 1}
    assert summary([[], []])["sites"] == []


def test_without_a_gpu_nothing_is_written(write_config, tmp_path):
    assert main([str(write_config()), "--out", str(tmp_path / "run")]) == 0
    assert not (tmp_path / "run" / "warned_syncs.json").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_masked_loss_is_warned_of_at_its_lines(write_config, tmp_path):
    loss = "steptrace.workloads.masked_losses.BooleanMaskLoss"
    assert main([str(write_config({"device": "cuda", "loss._target_": loss})), "--out", str(tmp_path / "run")]) == 0
    assert torch.cuda.get_sync_debug_mode() == 0
    record = json.loads((tmp_path / "run" / "warned_syncs.json").read_text())
    assert record["per_step"] > 0
    assert len(set(record["by_step"])) == 1
    assert all(site["file"].endswith("masked_losses.py") for site in record["sites"])
    assert "backward" in {site["phase"] for site in record["sites"]}


def test_only_what_the_program_warns_of_is_shown():
    with warnings.catch_warnings(record=True) as shown, SyncWatcher().step():
        warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all", stacklevel=1)
        warnings.warn("the program's own", stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["the program's own"]
