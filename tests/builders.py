"""Tiny hand-made traces, as Kineto would write them. All times are integer ns; the file holds decimal microseconds."""

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

from steptrace.documents.summary import TraceSummary
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace

MAIN = 100
AUTOGRAD = 101
LOADER = 102
PAGEABLE_D2H = "Memcpy DtoH (Device -> Pageable)"
PINNED_D2H = "Memcpy DtoH (Device -> Pinned)"
PAGEABLE_H2D = "Memcpy HtoD (Pageable -> Device)"
PINNED_H2D = "Memcpy HtoD (Pinned -> Device)"
D2D = "Memcpy DtoD (Device -> Device)"


class TraceBuilder:
    """Collects events; `text` and `write` give the file, `trace` reads it back."""

    def __init__(self, **metadata: Any) -> None:
        self.metadata: dict[str, Any] = {"schemaVersion": 1, **metadata}
        self.events: list[dict[str, Any]] = []
        self._next = 1

    def number(self) -> int:
        """A fresh id."""
        self._next += 1
        return self._next

    def add(self, category: str, name: str, ts: int, dur: int, **fields: Any) -> dict[str, Any]:
        """Append a complete event; `pid`, `tid` and `args` may be given."""
        event = {"ph": "X", "cat": category, "name": name, "pid": fields.get("pid", 1), "tid": fields.get("tid", MAIN)}
        event |= {"ts": ts / 1000, "dur": dur / 1000, "args": fields.get("args", {})}
        self.events.append(event)
        return event

    def step(self, index: int, ts: int, dur: int, tid: int = MAIN) -> None:
        self.add("user_annotation", f"ProfilerStep#{index}", ts, dur, tid=tid, args={"External id": self.number()})

    def label(self, name: str, ts: int, dur: int, tid: int = MAIN) -> None:
        self.add("user_annotation", name, ts, dur, tid=tid, args={"External id": self.number()})

    def frame(self, name: str, ts: int, dur: int, tid: int = MAIN) -> None:
        self.add("python_function", name, ts, dur, tid=tid, args={"Python id": self.number()})

    def op(self, name: str, ts: int, dur: int, tid: int = MAIN, **args: Any) -> int:
        """An operator; returns its external id."""
        number = self.number()
        self.add("cpu_op", name, ts, dur, tid=tid, args={"External id": number, **args})
        return number

    def call(self, name: str, ts: int, dur: int, tid: int = MAIN, category: str = "cuda_runtime") -> int:
        """A call into the runtime; returns its correlation."""
        number = self.number()
        self.add(category, name, ts, dur, tid=tid, args={"External id": 0, "correlation": number})
        return number

    def gpu(
        self, name: str, ts: int, dur: int, correlation: int | None, stream: int = 7, device: int = 0, **args: Any
    ) -> None:
        """An activity of a GPU; the category follows from the name."""
        category = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}.get(name[:6], "kernel")
        args = {"device": device, "stream": stream, **args}
        if correlation is not None:
            args["correlation"] = correlation
        self.add(category, name, ts, dur, pid=device, tid=stream, args=args)

    def nothing(self, correlation: int, ts: int, count: int = 80) -> None:
        """Work of no length that a call launches: so much that nearly all work has its launch."""
        for _ in range(count):
            self.gpu("nothing", ts, 0, correlation)

    def kernel(self, launch: int, ts: int, dur: int, name: str = "gemm", tid: int = MAIN, **args: Any) -> int:
        """A kernel and its launch, 1 us long at `launch`; returns the correlation."""
        correlation = self.call("cudaLaunchKernel", launch, 1000, tid=tid)
        self.gpu(name, ts, dur, correlation, **args)
        return correlation

    def item(self, ts: int, wait: int, copy_at: int, tid: int = MAIN) -> None:
        """What `.item()` does: a copy to pinned memory of 1 us at `copy_at`, and a wait for it."""
        correlation = self.call("cudaMemcpyAsync", ts, 2000, tid=tid)
        self.call("cudaStreamSynchronize", ts + 2000, wait, tid=tid)
        self.gpu(PINNED_D2H, copy_at, 1000, correlation)

    def text(self, *, indent: int | None = None) -> bytes:
        return json.dumps({**self.metadata, "traceEvents": self.events}, indent=indent).encode()

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(self.text()) if path.suffix == ".gz" else self.text())
        return path

    def trace(self) -> Trace:
        with tempfile.TemporaryDirectory() as folder:
            return read_trace(self.write(Path(folder) / "made.json"))

    def summary(self) -> TraceSummary:
        """Its entry of summary.json, written and read as any other trace."""
        from steptrace.analysis import summarize  # imports pandas, which tests of the reader do without

        with tempfile.TemporaryDirectory() as folder:
            return summarize([self.write(Path(folder) / "made.json")])[0].traces[0]


def training_step(
    builder: TraceBuilder, index: int = 0, ts: int = 0, *, sync: bool = True, origin: str = "model.py(10): forward"
) -> None:
    """One step of 1 ms with four kernels, a loader wait, and (`sync`) one `.item()` in the frame `origin`."""
    builder.step(index, ts, 1_000_000)
    builder.label("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", ts + 5_000, 50_000)
    builder.label("forward", ts + 100_000, 300_000)
    builder.frame("train.py(1): <module>", ts, 990_000)
    builder.frame(origin, ts + 110_000, 280_000)
    builder.frame("torch/_tensor.py(5): wrapped", ts + 115_000, 270_000)
    for k in range(3):
        builder.op("aten::mm", ts + 120_000 + k * 20_000, 10_000)
        builder.kernel(ts + 122_000 + k * 20_000, ts + 130_000 + k * 30_000, 25_000)
    if sync:
        builder.op("aten::item", ts + 200_000, 50_000)
        builder.op("aten::_local_scalar_dense", ts + 202_000, 45_000)
        builder.item(ts + 205_000, 20_000, ts + 220_000)
    builder.kernel(ts + 500_000, ts + 520_000, 100_000)
