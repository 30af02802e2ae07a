"""A host and a GPU of one stream, simulated: programs whose step time with and without a wait is known exactly."""

from collections.abc import Sequence
from dataclasses import dataclass

from builders import PINNED_D2H, TraceBuilder

LAUNCH_NS, QUEUE_NS, WAKE_NS = 5_000, 1_000, 8_000

#: ("kernel", ns on the GPU), ("python", ns on the host), ("item", line), ("free item", line): one that nobody waits for
Program = Sequence[tuple[str, int]]


@dataclass
class Machine:
    """Runs steps of a program, writing the trace as it goes."""

    builder: TraceBuilder
    host: int = 1_000
    free: int = 0

    def step(self, index: int, program: Program) -> None:
        begin = self.host
        for what, number in program:
            if what == "python":
                self.host += number
            elif what == "kernel":
                self.builder.op("aten::mm", self.host, 2_000)
                correlation = self.builder.call("cudaLaunchKernel", self.host, 1_000)
                self._run("gemm", number, correlation)
                self.host += 2_000
            else:
                self._item(number, waits=what == "item")
        self.builder.step(index, begin, self.host - begin)

    def _run(self, name: str, dur: int, correlation: int) -> None:
        start = max(self.host + LAUNCH_NS, self.free + QUEUE_NS)
        self.free = start + dur
        self.builder.gpu(name, start, dur, correlation)

    def _item(self, line: int, *, waits: bool) -> None:
        correlation = self.builder.call("cudaMemcpyAsync", self.host, 2_000 if waits else 0)
        begin = self.host
        self._run(PINNED_D2H, 1_000, correlation)
        if waits:
            end = max(self.free, self.host + 2_000) + WAKE_NS
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
    return max(machine.host, machine.free) - 1_000


def _run(program: Program, steps: int) -> Machine:
    machine = Machine(TraceBuilder())
    for index in range(steps):
        machine.step(index, program)
    return machine


def without(program: Program, line: int) -> Program:
    """The program with nobody waiting for the items of a line."""
    return [("free item", number) if (what, number) == ("item", line) else (what, number) for what, number in program]
