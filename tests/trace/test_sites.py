"""The source line of a sync: frames, backward to forward, and the lines recorded beside a trace."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from builders import AUTOGRAD, TraceBuilder
from steptrace.errors import TraceError
from steptrace.run_folder import write_sources
from steptrace.trace.model import Trace
from steptrace.trace.names import PIPELINE, SKIP, STDLIB, USER, Frame, frame_role, parse_frame
from steptrace.trace.source import load_source_lines, sites_of
from steptrace.trace.source_lines import SourceLines, same_file


def sites_of_syncs(trace: Trace, lines: SourceLines | None = None) -> pd.DataFrame:
    return sites_of(trace, trace.syncs, lines)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("model.py(3): forward", USER),
        ("/home/me/steptrace/mine/model.py(3): forward", USER),
        ("transformers/models/bert.py(3): forward", USER),
        ("steptrace/workloads/masked_losses.py(40): forward", USER),
        ("src/steptrace/workloads/masked_losses.py(40): forward", USER),
        ("/tmp/ipykernel_5/12.py(1): <cell line: 1>", USER),
        ("steptrace/lab/loop.py(40): train_step", PIPELINE),
        ("/x/site-packages/steptrace/lab/loop.py(40): train_step", PIPELINE),
        ("/x/src/steptrace/predict/mode.py(40): run", PIPELINE),
        ("torch/nn/modules/module.py(1): _call_impl", SKIP),
        ("/x/site-packages/torch/_tensor.py(1): backward", SKIP),
        ("nn.Module: Linear_0", SKIP),
        ("<built-in method item of Tensor object at 0x7f>", SKIP),
        ("<frozen os>(674): __getitem__", SKIP),
        ("<string>(2): __init__", SKIP),
        ("threading.py(1002): _bootstrap", STDLIB),
        ("multiprocessing/queues.py(9): get", STDLIB),
        ("/usr/lib/python3.12/contextlib.py(81): inner", STDLIB),
        ("/usr/lib/python3.12/site-packages/mylib/a.py(1): f", USER),
    ],
)
def test_roles_of_frames(name: str, role: int) -> None:
    assert frame_role(name) == role


def test_parsing_of_frames() -> None:
    frame = parse_frame("C:\\me\\model (old).py(12): Net.forward")
    assert frame is not None
    assert (frame.file, frame.line, frame.function) == ("C:/me/model (old).py", 12, "Net.forward")


def _two_waits() -> TraceBuilder:
    """A step in which one function waits twice under one label, from different lines."""
    builder = TraceBuilder()
    builder.step(0, 0, 1_000_000)
    builder.label("loss", 50_000, 500_000)
    builder.label("mask", 90_000, 300_000)
    builder.frame("train.py(1): <module>", 10, 900_000)
    builder.frame("steptrace/workloads/loss.py(20): forward", 60_000, 400_000)
    builder.frame("torch/_ops.py(5): __call__", 95_000, 100_000)
    for ts in (100_000, 150_000):
        builder.op("aten::index", ts, 40_000)
        builder.op("aten::nonzero", ts + 5_000, 30_000)
        builder.item(ts + 10_000, 5_000, ts + 13_000)
    return builder


def _op_lines(rows: list[Any], step: int = 0) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["op", "label", "phase", "file", "line", "function"])
    return table.assign(order=range(len(rows)), step=step, program_file=None, program_line=None)


def _lines(rows: list[Any]) -> SourceLines:
    text = "\n".join(f"    line {n}  " for n in range(1, 60))
    return SourceLines(_op_lines(rows), {"steptrace/workloads/loss.py": text})


def test_site_is_the_line_of_the_def_without_recorded_lines() -> None:
    sites = sites_of_syncs(_two_waits().trace())
    assert sites.drop(columns=["code", "program_file", "program_line"]).to_dict("records") == [
        {
            "file": "steptrace/workloads/loss.py", "line": 20, "function": "forward", "op": "aten::nonzero",
            "label": "mask", "phase": "loss",
        }
    ] * 2  # fmt: skip


_OTHER = ("aten::mul", "mask", "loss", "steptrace/workloads/loss.py", 29, "forward")


def _index_at(*lines: int, file: str = "loss.py", function: str = "forward") -> list[Any]:
    return [("aten::index", "mask", "loss", file, line, function) for line in lines]


def test_recorded_lines_tell_two_waits_of_one_function_apart() -> None:
    another = ("aten::index", "another", "loss", "steptrace/workloads/loss.py", 50, "forward")
    sites = sites_of_syncs(_two_waits().trace(), _lines([_OTHER, *_index_at(31, 34), another]))
    assert sites["line"].tolist() == [31, 34]
    assert sites["code"].tolist() == ["line 31", "line 34"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # another function or file: the recorded step ran something else there
        (_index_at(31, 31, function="elsewhere"), 20),
        (_index_at(31, 31, file="other.py"), 20),
        # another number of them: doubtful, unless all have one line
        (_index_at(31, 32, 33), 20),
        (_index_at(31, 31, 31), 31),
        ([("aten::index", "mask", "loss", None, None, None)] * 2, 20),
    ],
)
def test_recorded_lines_must_agree_with_the_trace(rows: list[Any], expected: int) -> None:
    assert sites_of_syncs(_two_waits().trace(), _lines(rows))["line"].tolist() == [expected, expected]


def _calls(*calls: tuple[str, str]) -> TraceBuilder:
    """A step of `main`: each call is a frame inside it and the operator that copies there."""
    builder = TraceBuilder()
    builder.step(0, 0, 200_000 + 100_000 * len(calls))
    builder.frame("train.py(57): main", 10, 100_000 + 100_000 * len(calls))
    for number, (frame, op) in enumerate(calls):
        ts = 100_000 + 100_000 * number
        builder.frame(frame, ts, 60_000)
        builder.op(op, ts + 5_000, 40_000)
        builder.item(ts + 10_000, 5_000, ts + 13_000)
    return builder


def _main(*calls: tuple[str, int], function: str = "main") -> list[Any]:
    return [(op, None, None, "train.py", line, function) for op, line in calls]


_CALL = "<built-in method to of Tensor object at 0x1>"


def test_another_number_of_operators_in_one_function_leaves_the_others_their_lines() -> None:
    helper = "train.py(20): helper"
    builder = _calls((_CALL, "aten::_to_copy"), (_CALL, "aten::_to_copy"), (helper, "aten::_to_copy"))
    recorded = [*_main(("aten::_to_copy", 45), ("aten::_to_copy", 46))]
    recorded += _main(("aten::_to_copy", 28), ("aten::_to_copy", 29), function="helper")
    assert sites_of_syncs(builder.trace(), _lines(recorded))["line"].tolist() == [45, 46, 20]


def test_any_watched_step_with_as_many_operators_gives_the_lines() -> None:
    builder = _calls((_CALL, "aten::_to_copy"), (_CALL, "aten::_to_copy"))
    recorded = [(45,), (45, 60), (45, 70)]
    steps = [_op_lines(_main(*[("aten::_to_copy", line) for line in lines]), n) for n, lines in enumerate(recorded)]
    lines = SourceLines(pd.concat(steps[:2]))
    assert sites_of_syncs(builder.trace(), lines)["line"].tolist() == [45, 60]
    doubtful = SourceLines(pd.concat(steps))  # two of them disagree
    assert sites_of_syncs(builder.trace(), doubtful)["line"].tolist() == [45, 57]


#: Line 10 is where one class's `forward` begins, 50 that of another's.
_TWO_CLASSES = "\n".join([*["#"] * 9, "def forward():", *["    pass"] * 39, "def forward():", *["    pass"] * 9])


@pytest.mark.parametrize(
    ("recorded", "elsewhere", "expected"),
    [
        ([12, 55], 4, [12, 12, 55]),
        ([12, 14, 55], 4, [12, 14, 55]),
        ([55, 56], 4, [10, 10, 50]),
        # in the other class only: by its function, and as the only line of all
        ([55], 4, [10, 10, 55]),
        ([55], 0, [10, 10, 55]),
    ],
)
def test_functions_of_one_name_in_one_file_keep_their_lines_apart(
    recorded: list[int], elsewhere: int, expected: list[int]
) -> None:
    builder = _calls(*[(f"m.py({line}): forward", "aten::mul") for line in (10, 10, 50)], (_CALL, "aten::mul"))
    rows = [("aten::mul", None, None, "m.py", line, "forward") for line in recorded]
    table = _op_lines([*rows, *_main(*[("aten::mul", 60 + k) for k in range(elsewhere)])])
    sites = sites_of_syncs(builder.trace(), SourceLines(table, {"m.py": _TWO_CLASSES}))
    assert sites["line"].tolist() == [*expected, 57]


def test_a_file_that_was_edited_meanwhile_refutes_no_recorded_line() -> None:
    builder = _calls(*[("m.py(5): forward", "aten::mul")] * 3, (_CALL, "aten::mul"))
    rows = [("aten::mul", None, None, "m.py", line, "forward") for line in (7, 8, 12)]
    text = "import torch\n" * 6 + "def forward(x):\n" + "    x = x * x\n" * 8
    table = _op_lines([*rows, *_main(("aten::mul", 60))])
    sites = sites_of_syncs(builder.trace(), SourceLines(table, {"m.py": text}))
    assert sites["line"].tolist() == [7, 8, 12, 60]


def test_operators_of_which_no_watched_step_had_as_many_cost_a_fixed_amount_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed = 0
    plain = Frame.__hash__

    def counted(frame: Frame) -> int:
        nonlocal hashed
        hashed += 1
        return plain(frame)

    def work(count: int) -> int:
        nonlocal hashed
        trace = _calls(*[(_CALL, "aten::mul")] * count).trace()
        lines = _lines(_main(*[("aten::mul", 60 + k % 2) for k in range(count - 1)]))
        hashed = 0
        assert sites_of_syncs(trace, lines)["line"].tolist() == [57] * count
        return hashed

    monkeypatch.setattr(Frame, "__hash__", counted)
    assert work(80) < 3 * work(40)


def test_a_site_in_a_library_names_the_program_s_line() -> None:
    table = _op_lines(_index_at(31, 34))
    table[["program_file", "program_line"]] = [["train.py", 7], [None, None]]
    sites = sites_of_syncs(_two_waits().trace(), SourceLines(table))
    assert sites["line"].tolist() == [31, 34]
    assert sites["program_file"].tolist() == ["train.py", None]
    assert sites["program_line"].tolist() == [7, pd.NA]


def test_a_wait_without_an_operator_in_a_module_s_own_code_has_its_line() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000_000)
    builder.frame("train.py(1): <module>", 10, 900_000)
    for ts in (100_000, 200_000):
        builder.op("aten::mul", ts, 10_000)
        builder.call("cudaDeviceSynchronize", ts + 20_000, 5_000)
    rows = [("cudaDeviceSynchronize", None, None, "train.py", line, "<module>") for line in (7, 9)]
    lines = _lines([("aten::mul", None, None, "train.py", 6, "<module>"), *rows])
    assert sites_of_syncs(builder.trace(), lines)["line"].tolist() == [7, 9]
    assert sites_of_syncs(builder.trace(), _lines(rows[:1] * 3))["line"].tolist() == [7, 7]
    assert sites_of_syncs(builder.trace(), _lines([*rows, *rows]))["line"].isna().all()


def test_what_copies_a_new_tensor_to_the_gpu_has_the_line_that_creates_it() -> None:
    # torch.tensor(values, device="cuda") copies where no dispatch mode sees it, then calls lift_fresh
    builder = _calls((_CALL, "aten::_to_copy"), ("<built-in method tensor of type object at 0x2>", "aten::_to_copy"))
    builder.op("aten::lift_fresh", 255_000, 2_000)
    lines = _lines(_main(("aten::_to_copy", 45), ("aten::lift_fresh", 46)))
    assert sites_of_syncs(builder.trace(), lines)["line"].tolist() == [45, 46]


def test_autocast_converts_before_the_recorder_sees_the_operator() -> None:
    builder = _calls((_CALL, "aten::_to_copy"), ("<built-in function mse_loss>", "aten::mse_loss"))
    builder.op("aten::to", 205_500, 3_000)
    builder.op("aten::_to_copy", 206_000, 2_000)
    builder.op("aten::mse_loss", 209_000, 10_000)
    lines = _lines(_main(("aten::_to_copy", 45), ("aten::_to_copy", 82), ("aten::mse_loss", 82)))
    assert sites_of_syncs(builder.trace(), lines)["line"].tolist() == [45, 82]


def test_the_line_that_a_function_was_at_when_the_profiler_started_is_not_that_of_a_wait() -> None:
    text = "import torch\n\n@decorated\ndef main():\n    a()\n    b()\n\ndef other():\n    c()\n"
    builder = TraceBuilder()
    builder.step(0, 0, 1_000_000)
    builder.frame("train.py(6): main", 10, 400_000)
    builder.item(100_000, 5_000, 103_000)
    builder.frame("train.py(9): <module>", 500_000, 400_000)
    builder.item(600_000, 5_000, 603_000)
    sites = sites_of_syncs(builder.trace(), SourceLines(None, {"train.py": text}))
    assert sites[["line", "code"]].to_numpy().tolist() == [[3, "@decorated"], [pd.NA, None]]
    assert sites_of_syncs(builder.trace(), SourceLines(None, {"train.py": "def ("}))["line"].tolist() == [6, pd.NA]


def test_a_file_that_only_ends_like_a_recorded_one_keeps_its_lines() -> None:
    program = "def forward():\n" + "    program()\n" * 60
    builder = TraceBuilder()
    builder.step(0, 0, 1_000_000)
    for number, file in enumerate(("/site-packages/lib/model.py", "model.py")):
        for function in ("forward", "<module>"):
            ts = 10_000 + 400_000 * number + (200_000 if function == "forward" else 0)
            builder.frame(f"{file}(40): {function}", ts, 150_000)
            builder.item(ts + 10_000, 5_000, ts + 13_000)
    trace = builder.trace()
    assert sites_of_syncs(trace, SourceLines(None, {"model.py": program}))["line"].tolist() == [pd.NA, 40, pd.NA, 1]
    library = "\n" * 29 + "def forward():\n" + "    library()\n" * 60
    both = SourceLines(None, {"model.py": program, "/site-packages/lib/model.py": library})
    assert sites_of_syncs(trace, both)["line"].tolist() == [pd.NA, 30, pd.NA, 1]
    assert both.code(Frame("/site-packages/lib/model.py", 40, "forward")) == "library()"
    only = SourceLines(None, {"model.py": program})
    quoted = [only.code(Frame("lib/model.py", line, name)) for name in ("forward", "other") for line in (40, 90)]
    assert quoted == ["program()", None, None, None]


def test_without_frames_the_recorded_line_stands_alone() -> None:
    builder = _two_waits()
    builder.events = [event for event in builder.events if event["cat"] != "python_function"]
    trace = builder.trace()
    assert sites_of_syncs(trace)["file"].isna().all()
    lines = _lines(_index_at(31, 32, file="a/loss.py"))
    assert sites_of_syncs(trace, lines)[["file", "line"]].to_numpy().tolist() == [["a/loss.py", 31], ["a/loss.py", 32]]


def test_what_an_operator_calls_inside_is_not_counted_among_the_recorded() -> None:
    # aten::nonzero is recorded once, where the program calls it itself; those inside aten::index are out of sight.
    builder = _two_waits()
    builder.op("aten::nonzero", 250_000, 40_000)
    builder.item(260_000, 5_000, 263_000)
    lines = _lines([*_index_at(31, 34), ("aten::nonzero", "mask", "loss", "loss.py", 40, "forward")])
    assert sites_of_syncs(builder.trace(), lines)["line"].tolist() == [31, 34, 40]


def _backward(*, own_frame: bool = False, same_thread: bool = False) -> TraceBuilder:
    builder = TraceBuilder()
    tid = 100 if same_thread else AUTOGRAD
    builder.step(0, 0, 1_000_000)
    builder.frame("train.py(1): <module>", 10, 900_000)
    builder.frame("loss.py(20): forward", 60_000, 100_000)
    builder.op("aten::index", 70_000, 40_000, **{"Sequence number": 5, "Fwd thread id": 0})
    builder.label("backward", 300_000, 200_000)
    builder.frame("torch/_tensor.py(7): backward", 305_000, 190_000)
    numbered = {"Sequence number": 5, "Fwd thread id": 1}
    builder.op("autograd::engine::evaluate_function: IndexBackward0", 310_000, 150_000, tid, **numbered)
    builder.op("IndexBackward0", 315_000, 140_000, tid, **numbered)
    if own_frame:
        builder.frame("custom.py(90): backward", 316_000, 130_000, tid)
    builder.op("aten::nonzero", 320_000, 100_000, tid)
    builder.item(330_000, 20_000, 340_000, tid)
    return builder


@pytest.mark.parametrize("same_thread", [False, True])
@pytest.mark.parametrize("own_frame", [False, True])
def test_backward_waits_belong_to_the_forward_line_or_to_a_user_s_own_backward(
    own_frame: bool,  # noqa: FBT001
    same_thread: bool,  # noqa: FBT001
) -> None:
    site = sites_of_syncs(_backward(own_frame=own_frame, same_thread=same_thread).trace()).iloc[0]
    place = ("custom.py", 90, "backward") if own_frame else ("loss.py", 20, "forward")
    assert (site["file"], site["line"], site["function"]) == place
    assert (site["op"], site["label"], site["phase"]) == ("aten::nonzero", "backward", "backward")


def test_backward_waits_take_the_recorded_forward_line() -> None:
    at_33 = ("loss.py", 33, "forward")
    lines = _lines([("aten::index", None, "loss", *at_33), ("aten::nonzero", "backward", "backward", *at_33)])
    assert sites_of_syncs(_backward().trace(), lines)["line"].tolist() == [33]


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (["train.py(1): <module>", "steptrace/lab/loop.py(5): train_step"], None),
        (["train.py(1): <module>", "queue.py(9): get"], "train.py"),
        (["train.py(1): <module>", "my/queue.py(9): get"], "my/queue.py"),
        (["profile.py(1): <module>"], "profile.py"),  # named like a standard module, but nothing else is there
    ],
)
def test_the_search_ends_at_the_pipeline_and_avoids_the_standard_library(
    frames: list[str], expected: str | None
) -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    for number, frame in enumerate(frames):
        builder.frame(frame, 10 + 10 * number, 900 - 100 * number)
    builder.op("aten::mm", 101, 10)
    builder.call("cudaDeviceSynchronize", 200, 10)
    file = sites_of_syncs(builder.trace())["file"].iloc[0]
    assert (None if pd.isna(file) else file) == expected


def test_code_comes_from_the_recorded_text_and_never_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    secret = tmp_path / "a.py"
    secret.write_text("def f():\n  on_disk(2)\n")
    assert SourceLines(None, {"x/a.py": "def f():\n\tthen(2)"}).code(Frame("a.py", 2, "f")) == "then(2)"
    for file in ("a.py", str(secret), "../a.py", "a\0.py"):
        assert SourceLines().code(Frame(file, 1, "<module>")) is None


def test_files_beside_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    assert load_source_lines(trace) == SourceLines(None, {})
    _op_lines([_OTHER]).to_parquet(tmp_path / "op_lines.parquet")
    write_sources(tmp_path, {"a.py": "x"})
    loaded = load_source_lines(trace)
    assert loaded.sources == {"a.py": "x"}
    assert loaded.op_lines is not None
    (tmp_path / "sources.json").write_text("[")
    with pytest.raises(TraceError, match="cannot be read") as error:
        load_source_lines(trace)
    assert error.value.where == str(tmp_path / "sources.json")


def test_of_two_names_of_a_file_one_ends_with_the_other_s_parts() -> None:
    assert same_file("src/steptrace/a.py", "steptrace/a.py")
    assert not same_file("b/a.py", "c/a.py")
    assert not same_file("aa.py", "a.py")
