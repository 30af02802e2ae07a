"""Calls of the host, and operators, that the profiler has lost: what shows it, and what is then not said."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from builders import AUTOGRAD, LOADER, MAIN, PAGEABLE_D2H, PINNED_D2H, TraceBuilder, training_step
from recorded import recorded
from steptrace.analysis import summarize
from steptrace.analysis.common.activity import launches_known, syncs_known, why_calls_unknown
from steptrace.analysis.quality import quality
from steptrace.analysis.syncs import syncs
from steptrace.documents.quality import QualityCheck
from steptrace.errors import TruncatedTraceError
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace
from steptrace.words.notes import note_text
from steptrace.words.quality import warning

US = 1_000
#: A part of the names of the calls that wait for the GPU.
_WAITS = ("Synchronize",)


def _check(trace: Trace, code: str) -> QualityCheck:
    (check,) = (row for row in quality(trace).checks if row.check == code)
    return check


def _without(builder: TraceBuilder, *parts: str, begin: int = 0, end: int = 1 << 62) -> TraceBuilder:
    """The events without the calls that have a part in their name and begin in a stretch of time."""
    builder.events = [
        event
        for event in builder.events
        if not (
            event["cat"] == "cuda_runtime"
            and any(part in event["name"] for part in parts)
            and begin <= event["ts"] * 1000 < end
        )
    ]
    return builder


def _steps(count: int) -> TraceBuilder:
    builder = TraceBuilder()
    for index in range(count):
        training_step(builder, index, index * 1_000 * US)
    return builder


def test_a_trace_that_has_lost_its_waits_says_no_number_of_syncs() -> None:
    whole = _steps(3).trace()
    lost = _without(_steps(3), *_WAITS).trace()
    assert syncs(whole).count == 3
    assert (_check(whole, "waiting_calls").wrong, _check(whole, "waiting_calls").figures["must_wait"]) == (0, 3)
    assert syncs(lost).count is None
    assert why_calls_unknown(lost) == "waits_lost"
    check = _check(lost, "waiting_calls")
    assert (check.warns, check.figures["missing"], check.figures["must_wait"]) == (True, 3, 3)
    assert "3 of 3" in warning(check)
    assert launches_known(lost)


def test_steps_without_their_waits_are_left_out_where_others_have_them() -> None:
    trace = _without(_steps(6), *_WAITS, begin=4_000 * US).trace()
    assert trace.steps["index"].tolist() == [0, 1, 2, 3]
    assert syncs(trace).per_step == 1
    check = _check(trace, "waiting_calls")
    assert (check.warns, check.figures["left_out"], check.figures["missing"]) == (True, [4, 5], 2)


def test_steps_that_are_left_out_for_another_reason_are_not_said_to_hold_no_event() -> None:
    unfinished = _steps(6)
    (last,) = (event for event in unfinished.events if event["name"] == "ProfilerStep#5")
    last.setdefault("args", {})["finished"] = "false"
    for trace, kept in (
        (_without(_steps(6), *_WAITS, begin=4_000 * US).trace(), 4),
        (unfinished.trace(), 5),
    ):
        assert len(trace.steps) == kept
        assert trace.meta.records.empty == 0
        assert not _check(trace, "steps_with_work").warns


def test_a_copy_to_pageable_memory_is_a_sync_without_its_wait() -> None:
    builder = _without(_steps(3), *_WAITS)
    for event in builder.events:
        if event["name"] == PINNED_D2H:
            event["name"] = PAGEABLE_D2H
    trace = builder.trace()
    assert syncs(trace).count == 3
    check = _check(trace, "waiting_calls")
    assert (check.warns, check.figures["missing"], check.figures["measured"]) == (True, 3, True)


@pytest.mark.parametrize(
    ("frame", "waits"),
    [
        ("torch/cuda/__init__.py(1181): synchronize", True),
        ("/venv/lib/python3.11/site-packages/torch/cuda/__init__.py(1181): synchronize", True),
        ("<built-in method synchronize of Stream object at 0x7fdfc8378960>", True),
        ("<built-in method synchronize of ExternalStream object at 0x7fdfc8378960>", True),
        # An event that was not recorded: no call is made.
        ("<built-in method synchronize of Event object at 0x7fdfc8378960>", False),
        ("torch/cuda/streams.py(226): synchronize", False),
        ("torch/xpu/__init__.py(400): synchronize", True),
        ("<built-in function _cuda_synchronize>", True),
        ("torch/cuda/__init__.py(1181): synchronize_later", False),
        ("mine/cuda/__init__.py(1): synchronize", False),
        ("torch/distributed/fsdp/_runtime_utils.py(5): synchronize", False),
    ],
)
@pytest.mark.parametrize("recorded_wait", [True, False])
def test_a_function_that_waits_needs_a_call_that_waits(frame: str, *, waits: bool, recorded_wait: bool) -> None:
    builder = TraceBuilder()
    training_step(builder, sync=False)
    builder.frame(frame, 700 * US, 100 * US)
    if recorded_wait:
        builder.call("cudaDeviceSynchronize", 710 * US, 50 * US)
    trace = builder.trace()
    assert syncs_known(trace) is (recorded_wait or not waits)
    assert _check(trace, "waiting_calls").warns is (waits and not recorded_wait)


@pytest.mark.parametrize(
    ("record", "needs_call"),
    [("Stream Sync", True), ("Context Sync", True), ("Event Sync", False), ("Stream Wait Event", False)],
)
@pytest.mark.parametrize("has_call", [True, False])
def test_cuptis_record_of_a_wait_needs_its_call(record: str, *, needs_call: bool, has_call: bool) -> None:
    builder = TraceBuilder()
    training_step(builder)
    number = builder.call("cudaStreamSynchronize", 700 * US, 50 * US) if has_call else builder.number()
    builder.add("cuda_sync", record, 700 * US, 50 * US, pid=0, tid=7, args={"correlation": number, "stream": 7})
    trace = builder.trace()
    assert syncs_known(trace) is (has_call or not needs_call)
    # Such a record is neither GPU work nor a call.
    assert len(trace.kernels) == 5
    assert trace.window == (0, 1_000 * US)


@pytest.mark.parametrize(("launches", "warns"), [(99, False), (100, True)])
def test_many_calls_of_which_none_waits_are_noticed(launches: int, *, warns: bool) -> None:
    builder = TraceBuilder()
    builder.step(1, 0, 1_000 * US)
    for at in range(launches):
        builder.kernel(at * 3 * US, at * 3 * US + 2 * US, US)
    trace = builder.trace()
    assert syncs(trace).count == 0
    assert _check(trace, "waiting_calls").warns is warns
    builder.call("cudaDeviceSynchronize", 1_100 * US, US)
    assert not _check(builder.trace(), "waiting_calls").warns


def _one_step(launches: int = 60) -> TraceBuilder:
    """A step of 600 us with an operator and its kernel every 10 us; every tenth operator launches nothing."""
    builder = TraceBuilder()
    builder.step(0, 0, 600 * US)
    for at in range(launches):
        tid = AUTOGRAD if at % 3 == 0 else 100
        builder.op("aten::view" if at % 10 == 9 else "aten::mm", at * 10 * US, 5 * US, tid=tid)
        if at % 10 != 9:
            builder.kernel(at * 10 * US + 1_000, at * 10 * US + 5_000, 4 * US, tid=tid)
    builder.call("cudaDeviceSynchronize", 610 * US, US)
    return builder


@pytest.mark.parametrize("third", [0, 1, 2])
def test_calls_that_are_missing_in_a_part_of_the_only_step_are_noticed(third: int) -> None:
    whole = _one_step().trace()
    assert (launches_known(whole), syncs(whole).count, quality(whole).warnings) == (True, 0, ())
    trace = _without(_one_step(), "Launch", begin=third * 200 * US, end=(third + 1) * 200 * US).trace()
    assert (launches_known(trace), syncs(trace).count) == (False, None)
    check = _check(trace, "linked_to_launch")
    assert (check.warns, check.figures["lost"]) == (True, 18)
    assert trace.steps["dur"].tolist() == whole.steps["dur"].tolist()


def test_work_that_was_launched_before_the_recording_is_not_lost() -> None:
    builder = _one_step()
    for event in builder.events:
        if event["cat"] in ("kernel", "gpu_memcpy"):  # the GPU is behind the host
            event["ts"] += 100
    for at in range(30):  # of a step before
        builder.gpu("gemm", at * 3 * US, US, None)
    builder.op("aten::empty", 0, 500)
    trace = builder.trace()
    assert launches_known(trace)
    assert _check(trace, "linked_to_launch").figures["lost"] == 0


@pytest.mark.parametrize(("thread", "is_lost"), [(MAIN, True), (LOADER, False)])
def test_an_early_operator_of_a_thread_that_launches_nothing_has_no_lost_call(thread: int, *, is_lost: bool) -> None:
    builder = _one_step()
    for event in builder.events:
        event["ts"] += 100
    for at in range(3):  # of a step before
        builder.gpu("gemm", at * 3 * US, US, None)
    for at in range(3):  # a loader multiplies on the CPU
        builder.op("aten::mm", at * 20 * US, 5 * US, tid=thread)
    assert launches_known(builder.trace()) is not is_lost


def test_steps_whose_first_calls_are_missing_are_left_out() -> None:
    builder = TraceBuilder()
    for index in range(4):
        training_step(builder, index, index * 1_000 * US)
    trace = _without(builder, "cuda", end=1_000 * US - 600 * US).trace()
    assert trace.steps["index"].tolist() == [1, 2, 3]
    assert syncs(trace).per_step == 1


def _named(builder: TraceBuilder) -> TraceBuilder:
    """The same events, in which each call names the operator around it, as PyTorch's profiler writes it."""
    ops = [event for event in builder.events if event["cat"] == "cpu_op"]
    for call in builder.events:
        if call["cat"] == "cuda_runtime":
            around = [op for op in ops if op["tid"] == call["tid"] and op["ts"] <= call["ts"] < op["ts"] + op["dur"]]
            call["args"]["External id"] = around[-1]["args"]["External id"] if around else 0
    return builder


def test_operators_that_are_missing_are_noticed_by_the_calls_that_name_them() -> None:
    builder = _named(_one_step())
    check = _check(builder.trace(), "launches_with_operator")
    assert (check.wrong, check.of, check.warns) == (0, 54, False)
    builder.events = [e for e in builder.events if not (e["cat"] == "cpu_op" and e["ts"] < 200)]
    check = _check(builder.trace(), "launches_with_operator")
    assert (check.wrong, check.of, check.warns) == (18, 54, True)


def test_ids_of_old_traces_that_name_no_operator_say_nothing() -> None:
    builder = _named(_one_step())
    for event in builder.events:
        if event["cat"] == "cuda_runtime" and event["args"]["External id"]:
            event["args"]["External id"] += 1_000
    assert _check(builder.trace(), "launches_with_operator").wrong == 0


def _unfinished(builder: TraceBuilder, *names: str, mark: Any = False) -> TraceBuilder:
    for event in builder.events:
        if event["name"] in names:
            event["args"]["finished"] = mark
    return builder


def test_a_step_that_was_still_running_at_the_end_of_the_recording_does_not_count() -> None:
    builder = _steps(3)
    builder.step(3, 3_000 * US, 100 * US)
    builder.op("aten::mm", 3_010 * US, 90 * US)
    builder.frame("train.py(1): step", 3_005 * US, 95 * US)
    trace = _unfinished(builder, "ProfilerStep#3", "train.py(1): step").trace()
    assert trace.steps["index"].tolist() == [0, 1, 2]
    (note,) = trace.meta.notes
    assert (note.code, note.figures["events"], note.figures["steps"]) == ("unfinished_events", 2, [3])
    assert "2 events" in note_text(note)
    assert quality(trace).warnings


def test_the_only_step_counts_and_is_said_to_be_incomplete() -> None:
    trace = _unfinished(_steps(1), "ProfilerStep#0", mark="false").trace()
    assert len(trace.steps) == 1
    assert trace.meta.notes[0].figures["steps"] == [0]


@pytest.mark.parametrize("mark", [True, "true", None])
def test_what_is_finished_is_not_noted(mark: Any) -> None:
    assert _unfinished(_steps(1), "aten::mm", "ProfilerStep#0", mark=mark).trace().meta.notes == ()


def test_an_unfinished_collective_is_noted_and_keeps_what_describes_it() -> None:
    builder = _steps(1)
    args = {"Collective name": "allreduce", "In msg nelems": 1_024, "finished": False}
    builder.op("record_param_comms", 600 * US, 300 * US, **args)
    builder.kernel(610 * US, 620 * US, 100 * US, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)")
    trace = builder.trace()
    assert trace.meta.notes[0].figures == {"events": 1, "steps": []}
    assert trace.collectives["in_elements"].tolist() == [1_024]


def _written(tmp_path: Path, name: str, keep: Any) -> Trace:
    content = json.loads(gzip.decompress(recorded(name).read_bytes()))
    content["traceEvents"] = [event for event in content["traceEvents"] if keep(event)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    return read_trace(path)


@pytest.mark.parametrize("name", ["h100_bert_small", "h100_qwen", "event_sync", "alexnet_cuda_sync"])
def test_recorded_traces_without_their_waits(tmp_path: Path, name: str) -> None:
    trace = _written(tmp_path, name, lambda event: "Synchronize" not in str(event.get("name")))
    assert not syncs_known(trace)
    assert syncs_known(read_trace(recorded(name)))


def _folder_of_ranks(folder: Path, ranks: int) -> Path:
    for rank in range(ranks):
        builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": ranks})
        for index in range(3):
            training_step(builder, index, index * 1_000 * US)
        builder.write(folder / f"rank{rank}.json")
    return folder


def test_a_damaged_rank_costs_none_of_the_others(tmp_path: Path) -> None:
    folder = _folder_of_ranks(tmp_path / "ranks", 4)
    damaged = folder / "rank2.json"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    summary, traces = summarize([folder])
    assert [trace.rank for trace in traces] == [0, 1, 3]
    (found,) = (note for note in summary.notes if note.code == "trace_not_read")
    assert found.figures["file"].endswith("rank2.json")
    assert "rank2.json" in note_text(found)
    assert [entry.syncs.count for entry in summary.traces] == [3, 3, 3]


@pytest.mark.parametrize(
    "text", [bytes([0x8D, 0x2C, 0xF8, 0x71]) * 99, b"{" + bytes(range(1, 200)), b"<html>", b" \n"], ids=repr
)
def test_a_rank_that_is_no_json_is_named(tmp_path: Path, text: bytes) -> None:
    folder = _folder_of_ranks(tmp_path / "ranks", 2)
    (folder / "rank2.json.gz").write_bytes(text)
    (folder / "config.json").write_text('{"hidden_size": 8}')
    (folder / "steps.json").write_text("12")
    summary, traces = summarize([folder])
    found = [Path(note.figures["file"]).name for note in summary.notes if note.code == "trace_not_read"]
    assert (len(traces), found) == (2, ["rank2.json.gz"])


def test_a_damaged_trace_that_was_named_is_an_error(tmp_path: Path) -> None:
    folder = _folder_of_ranks(tmp_path / "ranks", 2)
    damaged = folder / "rank1.json"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with pytest.raises(TruncatedTraceError):
        summarize([folder / "rank0.json", damaged])
    (folder / "rank0.json").unlink()
    with pytest.raises(TruncatedTraceError):  # a folder's only trace
        summarize([folder])
