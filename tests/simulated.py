"""A host and a GPU of two streams, simulated: programs whose step time with and without a wait is known exactly."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from builders import PINNED_D2H, TraceBuilder

LAUNCH_NS = 5_000
QUEUE_NS = 1_000
WAKE_NS = 8_000

#: ("kernel", ns on the GPU), ("side", the same on the second stream), ("graph", ns of each of its three kernels),
#: ("event", _): the next launch waits for all other work, ("python", ns on the host),
#: ("item", line), ("free item", line): one that nobody waits for
Program = Sequence[tuple[str, int]]


@dataclass
class Machine:
    """Runs steps of a program, writing the trace as it goes."""

    builder: TraceBuilder
    host: int = 1_000
    free: dict[int, int] = field(default_factory=lambda: {7: 0, 8: 0})
    event: int = 0

    def step(self, index: int, program: Program) -> None:
        begin = self.host
        for what, number in program:
            if what == "python":
                self.host += number
            elif what in ("kernel", "side", "graph"):
                self.builder.op("aten::mm", self.host, 2_000)
                call = "cudaGraphLaunch" if what == "graph" else "cudaLaunchKernel"
                correlation = self.builder.call(call, self.host, 1_000)
                for _ in range(3 if what == "graph" else 1):
                    self._run("gemm", number, correlation, stream=8 if what == "side" else 7)
                self.host += 2_000
            elif what == "event":
                self.builder.call("cudaStreamWaitEvent", self.host, 500)
                self.host += 1_000
                self.event = max(self.free.values()) + QUEUE_NS
            else:
                self._item(number, waits=what == "item")
        self.builder.step(index, begin, self.host - begin)

    def _run(self, name: str, dur: int, correlation: int, stream: int = 7) -> None:
        start = max(self.host + LAUNCH_NS, self.free[stream] + QUEUE_NS, self.event)
        self.free[stream] = start + dur
        self.event = 0
        self.builder.gpu(name, start, dur, correlation, stream=stream)

    def _item(self, line: int, *, waits: bool) -> None:
        correlation = self.builder.call("cudaMemcpyAsync", self.host, 2_000 if waits else 0)
        begin = self.host
        self._run(PINNED_D2H, 1_000, correlation)
        if waits:
            end = max(self.free[7], self.host + 2_000) + WAKE_NS
            self.builder.call("cudaStreamSynchronize", begin + 2_000, end - begin - 2_000)
            self.builder.op("aten::item", begin, end - begin)
            self.builder.frame(f"model.py({line}): forward", begin, end - begin)
            self.host = end
        else:
            self.host += 1


def simulate(program: Program, steps: int = 3) -> TraceBuilder:
    """The trace of some steps of a program."""
    return _run(program, steps).builder


def time_of(program: Program, steps: int = 3) -> int:
    """How long they all take together, in ns."""
    machine = _run(program, steps)
    return max(machine.host, *machine.free.values()) - 1_000


def _run(program: Program, steps: int) -> Machine:
    machine = Machine(TraceBuilder())
    for index in range(steps):
        machine.step(index, program)
    return machine


def without(program: Program, line: int) -> Program:
    """The program with nobody waiting for the items of a line."""
    return [("free item", number) if (what, number) == ("item", line) else (what, number) for what, number in program]
