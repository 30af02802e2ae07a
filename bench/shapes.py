"""Traces of an unusual shape: a hundred thousand streams, devices, threads, steps, labels, or operators in each other.

Some cross two of them: labels with threads, waits and syncs with streams.

    python bench/shapes.py [SHAPE...] [--count N]

For each shape: CPU seconds of `steptrace analyze`, page included, at a quarter of the count and at the count, and the
ratio of the two, which is 4 where the time is linear; the size of the page.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from steptrace import cli

Event = dict[str, Any]


def _event(category: str, name: str, ts: float, dur: float, **fields: Any) -> Event:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **fields}


def _launched(k: int, tid: int = 1, **args: int) -> Iterator[Event]:
    """An operator that launches a kernel."""
    yield _event("cpu_op", "aten::mm", 10 * k, 8, tid=tid, args={"External id": k})
    yield _event("cuda_runtime", "cudaLaunchKernel", 10 * k + 2, 1, tid=tid, args={"correlation": k, "External id": k})
    where = {"device": 0, "stream": 7, **args}
    yield _event("kernel", "gemm", 10 * k + 4, 5, pid=0, tid=7, args={"correlation": k, "External id": k, **where})


def streams(count: int) -> Iterator[Event]:
    """A stream for each kernel."""
    for k in range(count):
        yield from _launched(k, stream=k)


def devices(count: int) -> Iterator[Event]:
    """A device for each kernel."""
    for k in range(count):
        yield from _launched(k, device=k)


def threads(count: int) -> Iterator[Event]:
    """A thread for each operator."""
    for k in range(count):
        yield from _launched(k, tid=k + 1)


def steps(count: int) -> Iterator[Event]:
    """A step for each kernel."""
    for k in range(count):
        yield _event("user_annotation", f"ProfilerStep#{k}", 10 * k, 9.9)
        yield from _launched(k)


def labels(count: int) -> Iterator[Event]:
    """A label of its own around each operator."""
    for k in range(count):
        yield _event("user_annotation", f"part {k}", 10 * k, 9.9)
        yield from _launched(k)


def nested(count: int) -> Iterator[Event]:
    """Operators in each other, all in one step, and a kernel of the innermost."""
    yield _event("user_annotation", "ProfilerStep#0", 0, 2 * count + 100)
    for k in range(count):
        yield _event("cpu_op", f"aten::op{k % 50}", k, 2 * (count - k) + 20, args={"External id": k})
    yield _event("cuda_runtime", "cudaLaunchKernel", count + 2, 1, args={"correlation": 1, "External id": count - 1})
    yield _event("kernel", "gemm", count + 4, 5, pid=0, tid=7, args={"correlation": 1, "device": 0, "stream": 7})


def names(count: int) -> Iterator[Event]:
    """Kernels and operators of which no two have the same name."""
    for k in range(count):
        for event in _launched(k):
            yield {**event, "name": f"{event['name']}{k}"} if event["cat"] != "cuda_runtime" else event


def _waiting(k: int, **args: int) -> Iterator[Event]:
    """A wait of a stream for an event before the launch of a kernel."""
    yield _event("cuda_runtime", "cudaStreamWaitEvent", 10 * k + 1, 0.5, args={"correlation": 0})
    yield from _launched(k, **args)


def waits(count: int) -> Iterator[Event]:
    """A wait before each launch, all on one stream."""
    for k in range(count):
        yield from _waiting(k)


def waits_of_streams(count: int) -> Iterator[Event]:
    """A wait before each launch, each on a stream of its own, with work of another stream launched after the wait."""
    for k in range(count):
        yield from _waiting(2 * k, stream=2 * k)
        yield from _launched(2 * k + 1, stream=1)


def syncs_of_streams(count: int) -> Iterator[Event]:
    """A kernel on a stream of its own, and a wait of the host for its event or its stream."""
    for k in range(count):
        yield from _launched(k, stream=k)
        name = "cudaEventSynchronize" if k % 2 else "cudaStreamSynchronize"
        yield _event("cuda_runtime", name, 10 * k + 9, 0.5, args={"correlation": 0})


def labels_of_threads(count: int) -> Iterator[Event]:
    """A thread of its own for each operator, and a label of its own around it."""
    for k in range(count):
        yield _event("user_annotation", f"part {k}", 10 * k, 9.9, tid=k + 1)
        yield from _launched(k, tid=k + 1)


def groups(count: int) -> Iterator[Event]:
    """Collectives, each of a process group of its own."""
    for k in range(count):
        described = {"Collective name": "allreduce", "Process Group Name": str(k), "Process Group Ranks": f"[0, {k}]"}
        for event in _launched(k, stream=20):
            if event["cat"] == "kernel":
                event |= {"name": "ncclDevKernel_AllReduce", "args": event["args"] | described | {"Seq": 1}}
            yield event


def one_launch(count: int) -> Iterator[Event]:
    """A graph's launch with all kernels, some of which run at once."""
    yield _event("cuda_runtime", "cudaGraphLaunch", 0, 1, args={"correlation": 1})
    for k in range(count):
        args = {"correlation": 1, "device": 0, "stream": 7, "graph id": 3}
        yield _event("kernel", "gemm", 10 + 5 * k, 17, pid=0, tid=7, args=args)


def graphs(count: int) -> Iterator[Event]:
    """Graphs of two kernels, each launched three times."""
    for k in range(count):
        yield _event("cuda_runtime", "cudaGraphLaunch", 20 * k, 1, args={"correlation": k + 1})
        args = {"correlation": k + 1, "device": 0, "stream": 7, "graph id": k // 3 + 1}
        for part in range(2):
            yield _event("kernel", "gemm", 20 * k + 4 + 5 * part, 4, pid=0, tid=7, args=args)


def overlapping(count: int) -> Iterator[Event]:
    """Kernels of one stream that run until the last one ends."""
    for k in range(count):
        for event in _launched(k):
            yield {**event, "dur": 10 * (count - k)} if event["cat"] == "kernel" else event


def lost(count: int) -> Iterator[Event]:
    """Steps, the first half of which have lost their kernels."""
    for k in range(count):
        yield _event("user_annotation", f"ProfilerStep#{k}", 10 * k, 9.9)
        for event in _launched(k):
            if event["cat"] != "kernel" or 2 * k >= count:
                yield event


def long_names(count: int) -> Iterator[Event]:
    """Kernels with long names of their own."""
    for k in range(count):
        for event in _launched(k):
            yield {**event, "name": f"void k{k}<{'a<b, ' * 100}>(int)"} if event["cat"] == "kernel" else event


def arrows(count: int) -> Iterator[Event]:
    """Arrows from each launch to its kernel, and from each operator to its backward one."""
    for k in range(count):
        yield from _launched(k)
        for category in ("ac2g", "fwdbwd"):
            for phase in "sf":
                yield _event(category, category, 10 * k + 2, 0) | {"ph": phase, "id": k}


def allocations(count: int) -> Iterator[Event]:
    """Blocks of memory, all of which live to the end."""
    for k in range(count):
        yield from _launched(k)
        sizes = {"Addr": 1 << 20 | k * 512, "Bytes": 512, "Total Allocated": 512 * (k + 1), "Total Reserved": 1 << 30}
        event = _event("cpu_instant_event", "[memory]", 10 * k + 3, 0, args={"Device Type": 1, "Device Id": 0, **sizes})
        yield event | {"ph": "i", "s": "t"}


def modules(count: int) -> Iterator[Event]:
    """Python functions in each other, each around an operator of its own."""
    for k in range(count):
        args = {"Python id": k + 1, "Python parent id": k}
        yield _event("python_function", f"model.py({k % 900}): forward", 10 * k, 20 * (count - k) + 20, args=args)
        yield from _launched(k)


SHAPES: Final[dict[str, Callable[[int], Iterator[Event]]]] = {
    shape.__name__: shape
    for shape in (
        *(streams, devices, threads, steps, labels, nested, names),
        *(waits, waits_of_streams, syncs_of_streams, labels_of_threads),
        *(groups, one_launch, graphs, overlapping, lost, long_names, arrows, allocations, modules),
    )
}
#: More GPUs than a process has are refused.
REFUSED: Final = "devices"


def write(shape: str, count: int, path: Path) -> None:
    """Write a trace of a shape."""
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(SHAPES[shape](count))}), encoding="utf-8")


def analyze(shape: str, count: int) -> tuple[float, int]:
    """The CPU seconds of `steptrace analyze` on a trace of a shape, and the bytes of its page."""
    with tempfile.TemporaryDirectory(prefix="steptrace-shapes-") as folder:
        path = Path(folder, "trace.json")
        out = Path(folder, "out")
        write(shape, count, path)
        begun = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = cli.main(["analyze", str(path), "--out", str(out)])
        took = time.process_time() - begun
        if code:
            sys.exit(f"{shape}: exit code {code}")
        return took, (out / "report.html").stat().st_size


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("shapes", nargs="*", help=f"one or more of {', '.join(SHAPES)}; without any all")
    parser.add_argument("--count", type=int, default=2_000, help="events of the shape; the issue asks for 100,000")
    options = parser.parse_args()
    analyze("steps", 10)  # what is imported once is no part of the comparison
    print(f"{'shape':18}{'a quarter':>11}{options.count:>12,}{'ratio':>8}{'page':>12}")
    for name in options.shapes or [name for name in SHAPES if name != REFUSED]:
        small, _ = analyze(name, options.count // 4)
        large, page = analyze(name, options.count)
        print(f"{name:18}{small:9.2f} s{large:10.2f} s{large / small:8.1f}{page:10,} B", flush=True)
