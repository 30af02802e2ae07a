import gzip
import json
import linecache
import sys

import pandas as pd
import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the name everyone knows it by

from steptrace.documents.run import OpLine
from steptrace.documents.table import validate
from steptrace.engine.frames import trace_file_name
from steptrace.engine.step_recorders import OpLineRecorder
from steptrace.run_folder import read_run, read_steps
from steptrace.workloads import masked_losses, segmentation

LOSSES = "steptrace/workloads/masked_losses.py"


@pytest.fixture
def recorded(trained):
    """Op lines, sources and trace of a tiny run of the baseline."""
    out = trained({"loss._target_": "steptrace.workloads.masked_losses.BooleanMaskLoss", "profile.active": 1})
    with gzip.open(out / "trace.json.gz") as file:
        trace = json.load(file)["traceEvents"]
    lines = validate(pd.read_parquet(out / "op_lines.parquet"), OpLine)
    return lines, json.loads((out / "sources.json").read_text())["files"], trace


def code_of(row, sources):
    return sources[row.file].splitlines()[row.line - 1].strip()


def test_an_operator_s_line_is_the_call_itself(recorded):
    lines, sources, _ = recorded
    code = {row.op: code_of(row, sources) for row in lines[lines.phase == "loss"].itertuples()}
    assert code["aten::nonzero"] == "background = torch.nonzero(target == self.background, as_tuple=True)"
    assert code["aten::index_put_"] == "target[background] = self.ignore_index"
    assert code["aten::_unique2"] == "labels = torch.unique(target)"
    assert code["aten::nll_loss_forward"] == "return F.cross_entropy(logits, target)"
    labels = dict(zip(lines.op, lines.label, strict=True))
    assert labels["aten::nonzero"] == "non_zero"
    assert labels["aten::_unique2"] == "unique"


def test_a_wait_without_an_operator_has_a_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", waits := lambda: None)
    recorder = OpLineRecorder()
    with recorder:
        torch.cuda.synchronize()
    assert torch.cuda.synchronize is waits
    (row,) = recorder.rows()
    assert (row.op, row.label, row.function) == (
        "cudaDeviceSynchronize", None, "test_a_wait_without_an_operator_has_a_line",
    )  # fmt: skip


def test_a_step_that_begins_and_ends_inside_labels_has_them_at_both_ends():
    """As where `optimizer.step()`, which ends a step, is called within `record_function`."""
    label = torch.profiler.record_function
    recorder = OpLineRecorder()
    with label("epoch"), label("step"):
        recorder.__enter__()  # in the middle of the labels
        torch.ones(2).exp()
    with label("forward"):
        torch.ones(2).sin()
    torch.ones(2).cos()
    with label("step"):
        torch.ones(2).sqrt()
        recorder.__exit__(None, None, None)
    labels = {row.op: (row.label, row.phase) for row in recorder.rows()}
    assert labels["aten::exp"] == (None, None)  # "epoch" has ended for good: how many labels were open is not known
    assert labels["aten::sin"] == ("forward", "forward")

    recorder = OpLineRecorder()
    with label("epoch"):
        with label("step"):
            recorder.__enter__()
            torch.ones(2).exp()
        torch.ones(2).cos()
        with label("step"):
            torch.ones(2).sqrt()
            recorder.__exit__(None, None, None)
    labels = {row.op: (row.label, row.phase) for row in recorder.rows()}
    assert labels["aten::exp"] == labels["aten::sqrt"] == ("step", "step")
    assert labels["aten::cos"] == (None, None)


def test_a_loss_that_is_made_of_other_operators_under_a_mode_is_one_with_its_backward_pass():
    scores = torch.randn(6, 2, 5, requires_grad=True)
    targets = torch.ones(2, 3, dtype=torch.long)
    lengths = torch.tensor([6, 6]), torch.tensor([3, 3])
    with OpLineRecorder() as recorder:
        loss = F.ctc_loss(scores, targets, *lengths)
        forward = len(recorder.lines)
        loss.backward()
    lines = {row.op: (row.phase, row.line) for row in recorder.rows()}
    called = lines["aten::ctc_loss"]
    assert linecache.getline(__file__, called[1]).strip().startswith("loss = F.ctc_loss(")
    assert [line.op for line in recorder.lines[:forward]] == ["aten::ctc_loss"]
    assert lines["aten::_ctc_loss_backward"] == ("backward", called[1])


def test_an_operator_that_a_library_calls_has_the_program_s_line_too(tmp_path, monkeypatch):
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "doubling.py").write_text("def double(x):\n    return x * 2\n")
    monkeypatch.syspath_prepend(str(package))
    from doubling import double

    with OpLineRecorder() as recorder:
        double(torch.ones(2))
    row = recorder.rows()[-1]
    assert (row.op, row.line, row.function) == ("aten::mul", 2, "double")
    assert row.program_file.endswith("test_lines.py")
    assert linecache.getline(__file__, row.program_line).strip() == "double(torch.ones(2))"
    assert recorder.rows()[0].program_file is None  # the program's own call


def test_a_backward_operator_has_its_forward_line(recorded):
    lines, sources, _ = recorded
    backward = lines[lines.phase == "backward"]
    code = {row.op: code_of(row, sources) for row in backward.itertuples() if isinstance(row.file, str)}
    assert code["aten::index_put"] == "logits = logits[mask]"
    assert code["aten::nll_loss_backward"] == "return F.cross_entropy(logits, target)"
    convolutions = [code_of(row, sources) for row in backward.itertuples() if row.op == "aten::convolution_backward"]
    assert [line.split("(")[0] for line in convolutions] == ["return self.last", "x = torch.relu", "x = torch.relu"]
    assert "self.first" in convolutions[-1]


def test_a_gradient_taken_by_hand_is_of_the_backward_pass_as_in_a_trace():
    x = torch.ones(2, requires_grad=True)
    with OpLineRecorder() as recorder:
        torch.autograd.grad((x * x).sum(), x)
    phases = {row.op: row.phase for row in recorder.rows()}
    assert (phases["aten::sum"], phases["aten::expand"]) == (None, "backward")


def test_the_operators_that_print_a_tensor_are_recorded_and_printing_is_as_before():
    tensor = torch.ones(2)
    before = torch._tensor_str._str_intern
    with OpLineRecorder() as recorder:
        line = sys._getframe().f_lineno
        text = str(tensor)
        tensor.sum().item()
    assert text == str(tensor)
    assert torch._tensor_str._str_intern is before
    reads = [row.line for row in recorder.rows() if row.op == "aten::_local_scalar_dense"]
    assert len(reads) > 1
    assert (set(reads[:-1]), reads[-1]) == ({line + 1}, line + 2)


def test_operators_have_the_same_names_in_inference_mode():
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 4), torch.nn.LSTM(4, 5)])

    def watched(*, inference):
        with torch.no_grad(), torch.inference_mode(inference), OpLineRecorder() as recorder:
            x = torch.ones(2, 3)
            for layer in layers:
                x = layer(x)
            x[0].mean().to(torch.float64).item()
            torch.ops.aten.silu_backward(torch.ones(2), torch.ones(2))  # composite, with a kernel of its own
        detaching = "aten::detach"  # autograd's own
        return [(row.op, row.line) for row in recorder.rows() if row.op != detaching]

    plain = watched(inference=False)
    assert {"aten::_local_scalar_dense", "aten::_to_copy", "aten::silu_backward"} < {op for op, _ in plain}
    assert watched(inference=True) == plain


def test_a_tensor_of_a_subclass_gets_the_operator_that_is_called():
    called = []

    class Logged(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            called.append(func._schema.name)
            return super().__torch_dispatch__(func, types, args, kwargs)

    with torch.inference_mode():
        x = torch.ones(2).as_subclass(Logged)
        with OpLineRecorder():
            x.to(torch.float64)
    assert "aten::to" in called


def test_operators_of_the_pipeline_and_of_pytorch_alone_have_no_line(recorded):
    lines, _, _ = recorded
    assert lines[lines.phase == "optimizer"].file.isna().all()
    assert set(lines.file.dropna()) == {LOSSES, "steptrace/workloads/segmentation.py"}


def test_files_and_functions_are_named_as_in_the_trace(recorded):
    lines, _, trace = recorded
    frames = {event["name"] for event in trace if event.get("cat") == "python_function"}
    named = lines.dropna(subset=["file"])[["file", "function"]].drop_duplicates()
    assert len(named) >= 4
    for file, function in named.itertuples(index=False):
        assert any(frame.startswith(f"{file}(") and frame.endswith(f"): {function}") for frame in frames)


def test_operators_come_in_the_order_of_the_trace(recorded):
    """A trace also shows operators that others call inside; those that only Python calls must match one by one."""
    lines, _, trace = recorded
    marking = {"aten::index_put_", "aten::_unique2", "aten::index", "aten::convolution_backward"}
    traced = sorted((e for e in trace if e.get("cat") == "cpu_op" and e["name"] in marking), key=lambda e: e["ts"])
    assert [op for op in lines.op if op in marking] == [event["name"] for event in traced]


def test_sources_hold_the_text_that_the_lines_point_into(recorded):
    _, sources, _ = recorded
    modules = {LOSSES: masked_losses, "steptrace/workloads/segmentation.py": segmentation}
    for name, module in modules.items():
        with open(module.__file__, encoding="utf-8") as file:  # noqa: PTH123 - a module's file is a str
            assert sources[name] == file.read()


def test_a_file_is_named_from_its_place_on_the_python_path(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "inner")
    assert trace_file_name(str(tmp_path / "a" / "b.py")) == "a/b.py"
    assert trace_file_name(str(tmp_path / "inner" / "b.py")) == "b.py"
    assert trace_file_name("/nowhere/b.py") == "/nowhere/b.py"


#: Dynamo itself refuses to compile a whole function where a dispatch mode is on.
COMPILED = "torch.compile(torch.sin, backend='eager', fullgraph=True)(output)"
WATCHED = """\
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode


class Loss(torch.nn.Module):
    def forward(self, output, target):
        if _get_current_dispatch_mode() is not None:
            {statement}
        return output.mean()
"""


@pytest.mark.parametrize(
    ("name", "statement", "code", "figures"),
    [
        ("compiled", COMPILED, "compiled_without_lines", {}),
        # Its text is no reason to believe it.
        (
            "other",
            "raise RuntimeError('torch.compile')",
            "lines_incomplete",
            {"error": "RuntimeError: torch.compile"},
        ),
    ],
)
def test_a_step_that_cannot_be_watched_costs_the_lines_only_and_says_why(
    trained, tmp_path, name, statement, code, figures
):
    (tmp_path / f"watched_loss_{name}.py").write_text(WATCHED.format(statement=statement))
    out = trained({"loss": {"_target_": f"watched_loss_{name}.Loss"}, "python_path": [str(tmp_path)]})
    (noted,) = read_run(out).notes
    assert (noted.code, noted.figures) == (code, figures)
    lines = pd.read_parquet(out / "op_lines.parquet")
    assert "aten::convolution" in set(lines.op)
    assert "backward" not in set(lines.phase)
    assert (read_steps(out)["phase"] == "profiled").sum() == 2
