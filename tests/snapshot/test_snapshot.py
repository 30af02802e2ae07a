"""PyTorch's memory snapshots: live at the peak by line, growth, fragmentation; and files that must be refused."""

import io
import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from steptrace import cli
from steptrace.document_schemas import schema_of
from steptrace.documents.snapshot import SnapshotDevice
from steptrace.report.snapshot import answer
from steptrace.snapshot.kind import is_snapshot
from steptrace.snapshot.live import summarize_snapshots
from steptrace.snapshot.read import SnapshotError, read_snapshot

MIB = 1 << 20
SITE = "/env/lib/python3.12/site-packages"


def frame(file: str, line: float, function: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": function}


MODULE_CALL = frame(f"{SITE}/torch/nn/modules/module.py", 1800, "_call_impl")
FORWARD = [frame(f"{SITE}/torch/nn/functional.py", 5, "linear"), frame("/home/me/net.py", 7, "forward"), MODULE_CALL]
TO_GPU = [frame(f"{SITE}/torch/nn/modules/module.py", 900, "_apply"), frame("/home/me/train.py", 3, "main")]
STEP = [frame(f"{SITE}/torch/optim/adam.py", 100, "_init_group"), frame("/home/me/train.py", 9, "main")]
NATIVE = [
    frame("CUDACachingAllocator.cpp", 0, "malloc"),
    frame("??", 0, "torch::autograd::Engine::evaluate_function()"),
]
#: Of an operator of a backward pass under a dispatch mode: a thread of the autograd engine calls Python.
MODE = [
    frame(f"{SITE}/torch/_ops.py", 875, "__call__"),
    frame("/home/me/mode.py", 159, "__torch_dispatch__"),
    frame(f"{SITE}/torch/_dynamo/eval_frame.py", 1446, "_fn"),
    frame(f"{SITE}/torch/_compile.py", 54, "inner"),
]
LIBRARY_ALONE = [frame(f"{SITE}/einops/einops.py", 4, "rearrange")]


def alloc(addr: int, size: int, frames: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"action": "alloc", "addr": addr, "size": size, "stream": 0, "frames": frames or [], **more}


def free(addr: int, size: int) -> list[dict[str, Any]]:
    return [
        {"action": name, "addr": addr, "size": size, "stream": 0, "frames": []}
        for name in ("free_requested", "free_completed")
    ]


def block(addr: int, size: int, state: str = "active_allocated", frames: Any = (), asked: int | None = None) -> Any:
    asked = size if asked is None else asked
    return {"address": addr, "size": size, "requested_size": asked, "state": state, "frames": list(frames)}


def segment(address: int, *blocks: dict[str, Any], device: int = 0) -> dict[str, Any]:
    total = sum(each["size"] for each in blocks)
    return {"device": device, "address": address, "total_size": total, "stream": 0, "blocks": list(blocks)}


def training() -> dict[str, Any]:
    """Weights, a block from before the history, then a forward pass, its end, and an optimizer's state."""
    segments = [
        segment(0, block(0, 4 * MIB, frames=TO_GPU), block(4 * MIB, 4 * MIB, "inactive")),
        segment(100 * MIB, block(100 * MIB, 8 * MIB, frames=STEP, asked=7 * MIB)),
        segment(200 * MIB, block(200 * MIB, 6 * MIB, "inactive")),
        segment(300 * MIB, block(300 * MIB, 2 * MIB)),
    ]
    events = [
        {"action": "segment_alloc", "addr": 200 * MIB, "size": 6 * MIB, "stream": 0, "frames": []},
        alloc(200 * MIB, 3 * MIB, FORWARD),
        alloc(203 * MIB, 3 * MIB, FORWARD),
        alloc(4 * MIB, MIB),  # the backward pass: no frames, and at the peak
        *free(200 * MIB, 3 * MIB),
        *free(203 * MIB, 3 * MIB),
        *free(4 * MIB, MIB),
        *free(7 * MIB, MIB),  # it was there before the history
        alloc(100 * MIB, 7 * MIB, STEP),
    ]
    return {
        "segments": segments,
        "device_traces": [events],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"},
        "external_annotations": [],
    }


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(content: Any, name: str = "snapshot.pickle", protocol: int = 4) -> Path:
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=protocol))
        return file

    return write


def only_device(path: Path) -> SnapshotDevice:
    (device,) = summarize_snapshots([path]).snapshots[0].devices
    return device


def test_what_is_live_at_the_peak_by_line_and_category(written: Callable[..., Path]) -> None:
    device = only_device(written(training()))
    # Before: 4 (weights) + 2 (no stack) + 1 (released later). Then 3 + 3 + 1.
    assert device.peak_bytes == 14 * MIB
    assert device.peak_event == 3
    assert device.peak_by_category == {
        "activations": 6 * MIB, "parameters": 4 * MIB, "before_history": 3 * MIB, "gradients": MIB,
    }  # fmt: skip
    top = device.at_peak[0]
    assert (top.file, top.line, top.function, top.blocks, top.bytes) == ("/home/me/net.py", 7, "forward", 2, 6 * MIB)
    assert device.allocated_bytes == (4 + 7 + 2) * MIB
    assert [(line.category, line.bytes) for line in device.live] == [
        ("optimizer_state", 7 * MIB), ("parameters", 4 * MIB), ("before_history", 2 * MIB),
    ]  # fmt: skip
    assert device.agrees
    assert device.events == 13
    assert device.curve[0] == (0, 7 * MIB, 24 * MIB)
    assert device.curve[3] == (3, 14 * MIB, 24 * MIB)


def test_a_segment_of_no_numbered_device_has_no_other_device_s_history(written: Callable[..., Path]) -> None:
    """-1 is PyTorch's number of a device that is not known."""
    content = {
        "segments": [segment(0, block(0, MIB), device=-1), segment(10 * MIB, block(10 * MIB, 2 * MIB), device=1)],
        "device_traces": [[], [alloc(10 * MIB, 2 * MIB)]],
    }
    unknown, first = summarize_snapshots([written(content)]).snapshots[0].devices
    assert (unknown.device, unknown.reserved_bytes, unknown.events, unknown.peak_bytes) == (-1, MIB, 0, None)
    assert (first.device, first.reserved_bytes, first.events) == (1, 2 * MIB, 1)


def test_fragmentation_and_what_cannot_be_given_back(written: Callable[..., Path]) -> None:
    device = only_device(written(training()))
    assert device.reserved_bytes == 24 * MIB
    assert device.free_bytes == 10 * MIB
    assert device.largest_free_bytes == 6 * MIB
    assert device.fragmentation == pytest.approx(0.4)
    assert device.stuck_bytes == 4 * MIB  # beside the weights
    full = only_device(written({"segments": [segment(0, block(0, MIB))], "device_traces": []}))
    assert full.fragmentation is None
    assert full.peak_bytes is None


@pytest.mark.parametrize(
    ("frames", "category", "file"),
    [
        (FORWARD, "activations", "/home/me/net.py"),
        (TO_GPU, "parameters", "/home/me/train.py"),
        (STEP, "optimizer_state", "/home/me/train.py"),
        (NATIVE, "gradients", None),
        (
            [frame(f"{SITE}/torch/autograd/graph.py", 1, "_engine_run_backward"), *STEP[1:]],
            "gradients",
            "/home/me/train.py",
        ),
        ([frame(f"{SITE}/torch/utils/data/_utils/pin_memory.py", 1, "pin"), *STEP[1:]], "inputs", "/home/me/train.py"),
        ([frame("??", 0, "at::cuda::getCUDABlasLtWorkspace()"), *FORWARD], "workspaces", "/home/me/net.py"),
        (MODE, "gradients", None),
        (MODE[:2], "gradients", None),
        ([*MODE, *FORWARD], "activations", "/home/me/mode.py"),
        ([*MODE, *STEP], "optimizer_state", "/home/me/mode.py"),
        (LIBRARY_ALONE, "unknown", f"{SITE}/einops/einops.py"),
        ([frame("/opt/x/steptrace/launch/hooks.py", 100, "step"), *STEP], "optimizer_state", "/home/me/train.py"),
    ],
)
def test_a_stack_says_line_and_category(
    frames: list[Any], category: str, file: str | None, written: Callable[..., Path]
) -> None:
    events = [alloc(0, MIB, frames)]
    device = only_device(written({"segments": [segment(0, block(0, MIB))], "device_traces": [events]}))
    (line,) = device.at_peak
    assert (line.category, line.file) == (category, file)


def test_labels_of_optimizer_steps_tell_an_optimizer_of_the_program_s_own(written: Callable[..., Path]) -> None:
    label = {"name": "Optimizer.step#Mine.step", "device": 0}
    content = {
        "segments": [segment(0, block(0, MIB))],
        "device_traces": [[alloc(0, MIB, FORWARD, time_us=15)]],
        "external_annotations": [label | {"stage": "START", "time_us": 10}, label | {"stage": "END", "time_us": 20}],
    }
    assert only_device(written(content)).at_peak[0].category == "optimizer_state"


def test_growth_from_the_first_to_the_last(written: Callable[..., Path]) -> None:
    leak = segment(900 * MIB, *(block(number * MIB, MIB, frames=FORWARD) for number in range(900, 905)))
    later = training()
    later["segments"] = [*later["segments"][1:], leak]
    document = summarize_snapshots([written(training(), "a.pickle"), written(later, "b.pickle")])
    assert document.growth is not None
    assert [(row.category, row.line, row.grown_bytes, row.now_blocks) for row in document.growth] == [
        ("activations", 7, 5 * MIB, 5), ("parameters", 3, -4 * MIB, 0),
    ]  # fmt: skip
    assert summarize_snapshots([written(training())]).growth is None


def test_a_page_leads_with_the_line_that_holds_or_grew_most(written: Callable[..., Path]) -> None:
    later = training()
    later["segments"].append(segment(500 * MIB, block(500 * MIB, 32 * MIB, frames=FORWARD)))
    before, after = written(training(), "a.pickle"), written(later, "b.pickle")
    alone = answer(summarize_snapshots([before]))
    assert "14.0 MiB" in alone
    assert "net.py:7" in alone
    grown = answer(summarize_snapshots([before, after]))
    assert grown.count("32.0 MiB") == 2  # in all, and of the line
    assert "net.py:7" in grown
    same = answer(summarize_snapshots([before, before]))
    assert "MiB" not in same
    assert answer(summarize_snapshots([written({"segments": [], "device_traces": []}, "none.pickle")])) == ""


def test_a_failed_allocation_is_told_with_its_line(written: Callable[..., Path]) -> None:
    content = training()
    failed = {"action": "oom", "size": 64 * MIB, "stream": 0, "device_free": 5 * MIB, "frames": FORWARD}
    content["device_traces"][0].append(failed)
    (failure,) = only_device(written(content)).out_of_memory
    assert (failure.bytes, failure.device_free_bytes, failure.line) == (64 * MIB, 5 * MIB, 7)
    assert (failure.allocated_bytes, failure.reserved_bytes) == (13 * MIB, 24 * MIB)


def test_files_of_older_releases(written: Callable[..., Path]) -> None:
    """1.12 wrote the segments alone, blocks of releases before 2.1 have no address and a history."""
    history = [{"addr": 0, "real_size": MIB, "frames": FORWARD}]
    old = {"size": 2 * MIB, "state": "active_allocated", "history": history}
    segments = [{"device": 0, "address": 0, "total_size": 2 * MIB, "stream": 0, "blocks": [old, dict(old)]}]
    device = only_device(written(segments, protocol=2))
    assert [(line.file, line.blocks, line.bytes) for line in device.live] == [("/home/me/net.py", 2, 4 * MIB)]
    trace = [alloc(0, MIB, FORWARD), {"action": "free", "addr": 0, "size": MIB, "frames": []}]
    assert only_device(written({"segments": [], "device_traces": [trace]})).peak_bytes == MIB


def test_a_history_that_does_not_end_at_the_snapshot_is_told(written: Callable[..., Path]) -> None:
    content = training() | {"segments": []}
    assert only_device(written(content)).agrees is False


class _Calls:
    """A pickle of it calls a function when it is read."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


class _WithReference(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return "storage" if obj == "outside" else None


def _with_reference() -> bytes:
    file = io.BytesIO()
    _WithReference(file, protocol=4).dump({"segments": "outside"})
    return file.getvalue()


HOSTILE = {
    "a call at the top": lambda mark: pickle.dumps(_Calls(os.mkdir, mark)),
    "a call deep inside": lambda mark: pickle.dumps({"segments": [{"blocks": [_Calls(os.mkdir, mark)]}]}),
    "a call by protocol 2": lambda mark: pickle.dumps(_Calls(os.mkdir, mark), protocol=2),
    "a class of a library": lambda _: pickle.dumps(Path("x")),
    "an instance by INST": lambda mark: b"\x80\x02(S'" + mark.encode() + b"'\nios\nmkdir\n.",
    "an extension code": lambda _: b"\x80\x02\x82\x01.",
    "a reference to outside": lambda _: _with_reference(),
    "a place far outside of the memo": lambda _: b"\x80\x02]r" + struct.pack("<I", 0x7FFFFFF0) + b".",
    "bytes that are not there": lambda _: b"\x80\x04\x8e" + struct.pack("<Q", 1 << 45) + b".",
    "a frame that is not there": lambda _: b"\x80\x04\x95" + struct.pack("<Q", 1 << 45) + b"].",
    "nothing behind its first byte": lambda _: b"\x80",
    "half of one": lambda _: pickle.dumps(training())[:400],
    "another value": lambda _: pickle.dumps({"state_dict": [1, 2]}, protocol=4),
    "a number for a list": lambda _: pickle.dumps({"segments": 7}, protocol=4),
    "text for a size": lambda _: pickle.dumps({"segments": [segment(0) | {"total_size": "big"}]}, protocol=4),
    "no list of frames": lambda _: pickle.dumps(
        {"segments": [segment(0, block(0, 1) | {"frames": {"a": 1}})]}, protocol=4
    ),
    "a segment that is larger than any memory": lambda _: pickle.dumps(
        {"segments": [segment(0) | {"total_size": 10**400}]}, protocol=4
    ),
    "a segment of less than nothing": lambda _: pickle.dumps(
        {"segments": [segment(0) | {"total_size": -5}]}, protocol=4
    ),
    "an allocation whose digits Python does not write": lambda _: pickle.dumps(
        {"segments": [], "device_traces": [[alloc(0, 10**5000)]]}, protocol=4
    ),
    "an infinite line number": lambda _: pickle.dumps(
        {"segments": [segment(0, block(0, 1, frames=[frame("a.py", float("inf"), "f")]))]}, protocol=4
    ),
    "a line number whose digits Python does not write": lambda _: pickle.dumps(
        {"segments": [segment(0, block(0, 1, frames=[frame("a.py", 10**5000, "f")]))]}, protocol=4
    ),
    "lists a million deep": lambda _: b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_or_damaged_file_is_refused_and_runs_nothing(
    kind: str, written: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "was_run"
    file = written(HOSTILE[kind](str(mark)))
    with pytest.raises(SnapshotError) as raised:
        summarize_snapshots([file])
    assert not mark.exists()
    assert raised.value.where == str(file)
    assert raised.value.expected
    out = tmp_path / "out"
    assert cli.main(["analyze", str(file), "--out", str(out)]) == 2
    assert not out.exists()
    assert "Traceback" not in capsys.readouterr().err
    assert not mark.exists()


def test_what_pytorch_s_own_writer_puts_around_values_is_read(written: Callable[..., Path]) -> None:
    """`restore_type_tag(value, type)`, as its C++ writer leaves it; the function itself is not called."""
    plain = pickle.dumps(training(), protocol=2)
    tagged = b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\n(" + plain[2:-1] + b"X\x01\x00\x00\x00Tt" + b"R."
    assert read_snapshot(written(tagged)).content.segments


def test_a_snapshot_is_told_from_a_trace(written: Callable[..., Path], tmp_path: Path) -> None:
    assert is_snapshot(written(training()))
    trace = tmp_path / "trace.json"
    trace.write_text("{}")
    assert not is_snapshot(trace)
    assert not is_snapshot(tmp_path)
    assert not is_snapshot(tmp_path / "missing")


def test_analyze_and_diff_write_document_and_page(
    written: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = written(training(), "a.pickle")
    last = written({**training(), "segments": []}, "b.pickle")
    out = tmp_path / "o"
    assert cli.main(["analyze", str(first), "--out", str(out)]) == 0
    assert "/home/me/net.py:7" in capsys.readouterr().out
    document = json.loads((out / "snapshot.json").read_bytes())
    jsonschema.validate(document, schema_of("snapshot"))
    assert document["growth"] is None
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "/home/me/net.py" in page.replace("<wbr>", "").replace("​", "")
    assert cli.main(["diff", str(first), str(last), "--out", str(out), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    document = json.loads(Path(answer["snapshot"]).read_bytes())
    jsonschema.validate(document, schema_of("snapshot"))
    assert {row["grown_bytes"] for row in document["growth"]} == {-7 * MIB, -4 * MIB, -2 * MIB}
    assert cli.main(["analyze", str(first), "--no-report", "--out", str(out)]) == 0
    assert not (out / "report.html").exists()


def test_snapshots_and_traces_are_not_mixed(written: Callable[..., Path], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": []}')
    file = written(training())
    assert cli.main(["analyze", str(file), str(trace), "--out", str(tmp_path / "o")]) == 2
    assert cli.main(["diff", str(file), str(trace), "--out", str(tmp_path / "o")]) == 2
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "option", [["--counters"], ["--step", "0"], ["--limit", "1"], ["--bandwidth", "25"], ["--excerpt", "step.json.gz"]]
)
def test_options_of_traces_are_refused_for_a_snapshot(
    written: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    assert cli.main(["analyze", str(written(training())), *option, "--out", str(tmp_path / "o")]) == 2
    assert option[0] in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
