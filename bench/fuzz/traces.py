"""Traces changed at random: whatever a file holds, the outcome is figures and a page, or an error that names the file.

    python bench/fuzz/traces.py [INPUTS] [--seed N]

The corpus are the hand-made cases of tests/hostile.py and a trace with every kind of event that is read. Each input is
one of them with up to eight changes to its events or its bytes, drawn by hypothesis, which finds the smallest change
that still fails. `make soak` analyses 10,000 inputs; the tests read 500, which is where bounds are kept, and analyse
every eighth of them to its end.
"""

import argparse
import contextlib
import io
import json
import math
import sys
import tempfile
import time
import warnings
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[2] / "tests"))

import hostile
from builders import D2D, PINNED_D2H, TraceBuilder, training_step
from steptrace import cli
from steptrace.errors import TraceError
from steptrace.trace.link import read_trace
from steptrace.trace.model import TABLES

#: CPU seconds for one input of some kilobytes: more is a hang.
SLOWEST_S: Final = 20.0
_LARGEST: Final = 2**63

VALUES: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        "",
        "0",
        "-1",
        "NaN",
        "x" * 300,
        "\x00",
        "\x1b[2J",
        "\ud800",
        "Kernel",
        "ProfilerStep#1",
        "a.py(3): f",
    ),
    *(0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30),
    *(0.5, -0.0, 1e-9, 8.64e10, 9e15, 1e300, -1e300, math.nan, math.inf),
    *([], [1], [[]], [2**70, "a", None], {}, {"a": {}}, [[8, 8], [8, 8]], ["float", "long int"]),
)
KEYS: Final = (
    *("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "bp", "s", "args"),
    *("External id", "correlation", "stream", "device", "Input Dims", "Input type", "Concrete Inputs", "Python id"),
    *("Python parent id", "Python module id", "Bytes", "Addr", "Device Type", "Device Id", "Total Allocated", "bytes"),
    *(
        "Total Reserved",
        "grid",
        "block",
        "blocks per SM",
        "warps per SM",
        "est. achieved occupancy %",
        "Sequence number",
    ),
    *(
        "Fwd thread id",
        "Collective name",
        "In msg nelems",
        "Out msg nelems",
        "Group size",
        "dtype",
        "Process Group Name",
    ),
    *(
        "Rank",
        "graph id",
        "graph node id",
        "registers per thread",
        "shared memory",
        "memory bandwidth (GB/s)",
        "context",
    ),
)
NAMES: Final = (
    *("aten::item", "aten::mm", "Optimizer.step#SGD.step", "DistributedDataParallel.forward", "nccl:all_reduce"),
    *("cudaDeviceSynchronize", "cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "ncclDevKernel_AllReduce(x)"),
    *("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "[memory]", "process_name", "thread_name", D2D),
)
CATEGORIES: Final = (
    *("cpu_op", "user_annotation", "gpu_user_annotation", "python_function", "cuda_runtime", "cuda_driver", "kernel"),
    *("gpu_memcpy", "gpu_memset", "ac2g", "fwdbwd", "cpu_instant_event", "overhead", "Trace", "cuda_sync"),
)
METADATA: Final = (
    *("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "traceName", "displayTimeUnit"),
    *("with_stack", "record_shapes", "profile_memory", "traceEvents", "cuda_runtime_version"),
)
TOKENS: Final = (b"{", b"}", b"[", b"]", b",", b'"', b"\\", b"\\u0000", b"\xff", b"null", b"1e999", b"-", b"\n", b"/*")


def every_kind() -> TraceBuilder:
    """A trace with an event of every kind that is read."""
    trace = TraceBuilder(
        deviceProperties=[{"id": 0, "name": "GPU", "numSms": 100, "totalGlobalMem": 1 << 30}],
        distributedInfo={"rank": 0, "world_size": 2, "backend": "nccl"},
        baseTimeNanoseconds=1_000_000_000,
    )
    for index in range(2):
        training_step(trace, index, index * 1_100_000)
    for name, args in (("process_name", {"name": "python"}), ("thread_name", {"name": "thread 7"})):
        trace.events.append({"ph": "M", "name": name, "pid": 1, "tid": 100, "ts": 0, "args": args})
    shapes = {"Input Dims": [[8, 8], [8]], "Input type": ["float", "float"], "Concrete Inputs": ["", "1"]}
    trace.op("aten::addmm", 600_000, 20_000, **shapes, **{"Sequence number": 3, "Fwd thread id": 0})
    trace.label("Optimizer.step#SGD.step", 700_000, 50_000)
    trace.label("DistributedDataParallel.forward", 90_000, 400_000)
    correlation = trace.call("cudaLaunchKernel", 620_000, 1_000)
    collective = {"Collective name": "allreduce", "In msg nelems": 64, "Out msg nelems": 64, "Group size": 2}
    trace.gpu("ncclDevKernel_AllReduce(x)", 650_000, 50_000, correlation, stream=9, dtype="Float", **collective)
    trace.gpu(D2D, 710_000, 10_000, trace.call("cudaMemcpyAsync", 640_000, 1_000), bytes=4096)
    trace.gpu("Memset (Device)", 730_000, 10_000, trace.call("cudaMemsetAsync", 641_000, 1_000), bytes=64)
    trace.gpu(PINNED_D2H, 750_000, 5_000, trace.call("cudaMemcpyAsync", 645_000, 1_000), bytes=64)
    trace.call("cudaDeviceSynchronize", 900_000, 50_000)
    memory = {"Bytes": 512, "Addr": 7, "Device Type": 1, "Device Id": 0, "Total Allocated": 512, "Total Reserved": 1024}
    for ts, size in ((300, 512), (400, -512)):
        event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 100, "ts": ts, "s": "t"}
        trace.events.append({**event, "args": {**memory, "Bytes": size}})
    for ph, cat in (("s", "ac2g"), ("f", "ac2g"), ("s", "fwdbwd"), ("f", "fwdbwd")):
        trace.events.append({"ph": ph, "cat": cat, "name": cat, "id": 3, "pid": 1, "tid": 100, "ts": 620, "bp": "e"})
    return trace


_EVERY: Final = every_kind()
_DOCUMENT: Final[dict[str, Any]] = {**_EVERY.metadata, "traceEvents": _EVERY.events}

_AT = st.integers(0, 2**16)
_VALUE = st.sampled_from((*VALUES, *NAMES)) | st.integers(-(2**64), 2**64) | st.floats()
_CHANGE = st.one_of(
    st.tuples(st.just("set"), _AT, st.sampled_from(KEYS), _VALUE),
    st.tuples(st.just("rename"), _AT, st.sampled_from(NAMES), st.sampled_from(CATEGORIES)),
    st.tuples(st.just("drop"), _AT, st.sampled_from(KEYS), st.none()),
    st.tuples(st.just("remove"), _AT, st.none(), st.none()),
    st.tuples(st.just("repeat"), _AT, st.integers(1, 30), st.sampled_from((0, 0.001, 1, -7, 1e6))),
    st.tuples(st.just("replace"), _AT, st.none(), _VALUE),
    st.tuples(st.just("metadata"), _AT, st.sampled_from(METADATA), _VALUE),
)
_EDIT = st.one_of(
    st.tuples(st.just("insert"), _AT, st.sampled_from(TOKENS)),
    st.tuples(st.just("delete"), _AT, st.integers(1, 200)),
    st.tuples(st.just("end"), _AT, st.none()),
    st.tuples(st.just("byte"), _AT, st.integers(0, 255)),
    st.tuples(st.just("again"), _AT, st.integers(1, 400)),
)


def changed(document: dict[str, Any], change: tuple[Any, ...]) -> dict[str, Any]:
    """The document after one change to an event or to the metadata."""
    kind, at, key, value = change
    events = list(document["traceEvents"])
    if kind == "metadata" or not events:
        return {**document, key or "odd": value} if key != "traceEvents" else {**document, "traceEvents2": value}
    index = at % len(events)
    event = events[index]
    if kind == "replace":
        events[index] = value
    elif kind == "remove":
        del events[index]
    elif isinstance(event, dict):
        args = event.get("args") if isinstance(event.get("args"), dict) else {}
        if kind == "set" and key in args:
            events[index] = {**event, "args": {**args, key: value}}
        elif kind == "set":
            events[index] = {**event, key: value}
        elif kind == "rename":
            events[index] = {**event, "name": key, "cat": value}
        elif kind == "drop":
            less = {name: each for name, each in event.items() if name != key}
            events[index] = {**less, "args": {name: each for name, each in args.items() if name != key}}
        elif kind == "repeat" and isinstance(event.get("ts"), int | float):
            events[index:index] = [{**event, "ts": event["ts"] + k * value} for k in range(key)]
    return {**document, "traceEvents": events}


def edited(text: bytes, edit: tuple[Any, ...]) -> bytes:
    """The text after one change to its bytes."""
    kind, at, value = edit
    at %= len(text) + 1
    if kind == "insert":
        return text[:at] + value + text[at:]
    if kind == "delete":
        return text[:at] + text[at + value :]
    if kind == "byte":
        return text[:at] + bytes([value]) + text[at + 1 :]
    if kind == "again":
        return text[: at + value] + text[at:]
    return text[:at]


@st.composite
def traces(draw: st.DrawFn) -> bytes:
    """A file's content."""
    case = draw(st.sampled_from(("", *SMALL)))
    if case:
        text = hostile.CASES[case]
    else:
        document = _DOCUMENT
        for change in draw(st.lists(_CHANGE, max_size=8)):
            document = changed(document, change)
        text = json.dumps(document).encode()
    for edit in draw(st.lists(_EDIT, max_size=2 if case else 1)):
        text = edited(text, edit)
    return text


#: The rest are long by purpose, and stand in the tests as they are.
SMALL: Final = tuple(name for name, text in hostile.CASES.items() if len(text) < 20_000)


def read(text: bytes, folder: Path) -> None:
    """Read a file of that content; raise where that is neither tables of numbers nor an error that names the file."""
    path = folder / "trace.json"
    path.write_bytes(text)
    begun = time.process_time()
    try:
        trace = read_trace(path)
    except TraceError as error:
        if str(path) not in str(error):
            raise AssertionError(f"the message names no file: {error}") from error
    else:
        for name in TABLES:
            for column, values in getattr(trace, name).items():
                assert values.dtype.kind not in "fc" or not np.isinf(values.to_numpy()).any(), f"{name}.{column}"
    _check_time(begun, text)


def _check_time(begun: float, text: bytes) -> None:
    took = time.process_time() - begun
    assert took < SLOWEST_S, f"{took:.0f} CPU seconds for {len(text)} bytes"


def check(text: bytes, folder: Path) -> None:
    """Analyse a file of that content; raise where that is neither figures nor an error that names the file."""
    path = folder / "trace.json"
    errors = io.StringIO()
    path.write_bytes(text)
    begun = time.process_time()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("error")
        # A page costs as much as all the rest: every eighth input has one.
        without_page = ["--no-report"] if zlib.crc32(text) % 8 else []
        code = cli.main(["analyze", str(path), "--out", str(folder / "out"), *without_page])
    _check_time(begun, text)
    assert code in (0, 2), f"exit code {code}"
    if code == 2:
        assert str(path) in errors.getvalue(), f"the message names no file: {errors.getvalue()}"
    else:
        _check_numbers(json.loads((folder / "out" / "summary.json").read_bytes(), parse_constant=_refuse))


def _check_numbers(value: Any) -> None:
    """Everything finite and within int64."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            _check_numbers(each)
    elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise AssertionError(f"{value} is beyond int64")


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} in summary.json")


def run(inputs: int, *, number: int | None = None, analyze_each: int = 1) -> None:
    """Try so many inputs; the first that fails is made small, and raised with what it was.

    Args:
        inputs: how many.
        analyze_each: of so many inputs one is analysed to its end, all others are read.
        number: the seed; the same inputs whenever it is the same, None for always the same.
    """

    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        derandomize=number is None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(traces())
    def each(text: bytes) -> None:
        with tempfile.TemporaryDirectory(prefix="steptrace-fuzz-") as folder:
            whole = zlib.crc32(text) // 8 % analyze_each == 0
            (check if whole else read)(text, Path(folder))

    (each if number is None else seed(number)(each))()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("inputs", nargs="?", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="other inputs for every number")
    options = parser.parse_args()
    run(options.inputs, number=options.seed)
    print(f"{options.inputs} inputs: each gave figures, or an error that names the file")
