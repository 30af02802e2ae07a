"""What steptrace reads from traces of programs whose times the stand-in device was told.

A kernel takes 1 ms, 100,000 bytes take 1 ms over the bus, nothing lies between two pieces of work, and the host waits
for a set time (`host(5)` in timed_steps.py). So the length of the window, busy and idle time, the cost of a sync, and
what would be left without it can be calculated by hand: `PROGRAMS` does so for four recorded steps. What the device
does is exact. What the host does besides waiting, to launch and to be profiled, takes real time: up to `HOST_MS` a
step.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steptrace.analysis.build import summarize

STEPS = 4
#: What a step may take the host in addition to its set wait.
HOST_MS = 1.0
#: A copy's time besides that of its bytes.
COPY_MS = 0.0015
#: By how much the two clocks of a trace may part within a millisecond.
CLOCK_NS = 500
TOO_BUSY = 3


@dataclass(frozen=True)
class Program:
    """Times in ms, all for the whole window: from the first step's begin to the last one's end, on host or device."""

    name: str
    kernels: int  # a step
    window: float
    busy: float
    syncs: str | None = None  # the kind of the one sync a step
    blocked: float = 0  # the host, in syncs
    exposed: float = 0  # the device idle, from a sync to the next work; the window's last sync has no such work
    left: float | None = None  # of the window without the syncs; None: as it is
    kernel_ms: float = 1.0

    @property
    def left_ms(self) -> float:
        return self.window if self.left is None else self.left


PROGRAMS = [
    # 5 host, 10 kernels, then the host waits. Without the sync it runs ahead, and waits for nothing but the device.
    Program(
        "item", kernels=10, syncs="d2h_copy",
        window=4 * (5 + 10), busy=4 * (10 + COPY_MS), blocked=4 * 10, exposed=3 * 5, left=5 + 4 * 10,
    ),
    # 8 host, 2 kernels, wait: the host is what takes long, and remains so.
    Program(
        "late_item", kernels=2, syncs="d2h_copy",
        window=4 * (8 + 2), busy=4 * (2 + COPY_MS), blocked=4 * 2, exposed=3 * 8, left=4 * 8 + 2,
    ),
    # nonzero() is a kernel that counts, a sync, and two that write: the device has work again at once.
    Program(
        "nonzero", kernels=3 + 3, syncs="d2h_copy",
        window=4 * (4 + 3 + 1) + 2, busy=4 * (6 + COPY_MS), blocked=4 * (3 + 1), exposed=0, left=4 + 4 * 6,
    ),
    # From pageable memory: the host waits for the copy. 4 kernels are done before the next one.
    Program(
        "upload", kernels=4, syncs="h2d_copy",
        window=4 * (6 + 1) + 4, busy=4 * (1 + 4 + COPY_MS), blocked=4 * 1, exposed=0, left=4 * 6 + 1 + 4,
    ),
    # The same with the host done first: it is blocked longer, and that costs nothing.
    Program(
        "hidden_upload", kernels=4, syncs="h2d_copy",
        window=3 + 4 * (1 + 4), busy=4 * (1 + 4 + COPY_MS), blocked=1 + 3 * 2, exposed=0,
    ),
    # From pinned memory nothing waits.
    Program("pinned_upload", kernels=4, window=1 + 4 * (1 + 4), busy=4 * (1 + 4 + COPY_MS)),
    # To pageable memory: 2 host, 3 kernels and the copy, wait.
    Program(
        "download", kernels=3, syncs="d2h_copy",
        window=4 * (2 + 3 + 1), busy=4 * (3 + 1 + COPY_MS), blocked=4 * (3 + 1), exposed=3 * 2, left=2 + 4 * (3 + 1),
    ),
    # 2 kernels; then 1 here beside 3 on another stream; then 1 that waits for both: 6 ms of 7 kernels.
    Program(
        "two_streams", kernels=7, syncs="d2h_copy",
        window=4 * (3 + 6), busy=4 * (6 + COPY_MS), blocked=4 * 6, exposed=3 * 3, left=3 + 4 * 6,
    ),
    # One launch of 8 kernels.
    Program(
        "graph", kernels=8, syncs="d2h_copy",
        window=4 * (2 + 8), busy=4 * (8 + COPY_MS), blocked=4 * 8, exposed=3 * 2, left=2 + 4 * 8,
    ),
    # 1500 kernels of 0.1 ms: the queue takes 1024, so the host comes to the sync when so many are left.
    Program(
        "full_queue", kernels=1500, kernel_ms=0.1, syncs="d2h_copy",
        window=4 * 150, busy=4 * (150 + COPY_MS), blocked=4 * 102.4, exposed=0,
    ),
    # A sync between every two steps belongs to none of them.
    Program("between_steps", kernels=3, window=4 * (2 + 3), busy=4 * 3),
]  # fmt: skip


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.name)
def analysed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Program, dict[str, Any]]:
    """A program, and the summary of its trace."""
    program: Program = request.param
    trace = tmp_path_factory.mktemp("trace") / "trace.json"
    settings = {"KERNEL_US": program.kernel_ms * 1000, "GAP_US": 0, "LATENCY_US": 10, "PCIE_GBS": 0.1}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("timed_steps.py"), program.name, trace],
        env={**os.environ, **{f"FAKECUDA_{name}": str(value) for name, value in settings.items()}},
        capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip
    if done.returncode == TOO_BUSY:
        pytest.skip("other processes held up the host in every recording: run it on an idle machine")
    assert done.returncode == 0, done.stderr
    (trace_summary,) = msgspec.to_builtins(summarize([trace])[0])["traces"]
    return program, trace_summary


def _takes(ns: int, expected_ms: float, *, tolerance: float = STEPS * HOST_MS) -> bool:
    return abs(ns / 1e6 - expected_ms) <= tolerance


def test_the_device_has_done_what_it_was_told(analysed: tuple[Program, dict[str, Any]]) -> None:
    program, trace = analysed
    assert trace["quality"]["steps"] == STEPS
    assert trace["quality"]["warnings"] == ()
    assert trace["kernels_per_step"] == program.kernels
    assert trace["gpu"]["busy_ns"] == pytest.approx(program.busy * 1e6, rel=1e-4)
    for kernel in trace["kernels"]:
        if kernel["class"] == "compute":
            assert (kernel["min_ns"], kernel["max_ns"]) == pytest.approx((program.kernel_ms * 1e6,) * 2, abs=CLOCK_NS)


def test_window_and_idle_time(analysed: tuple[Program, dict[str, Any]]) -> None:
    program, trace = analysed
    window = trace["overview"]["window_ns"]
    assert _takes(window, program.window)
    parts = trace["overview"]["parts_ns"]
    assert sum(parts.values()) == window
    idle = sum(ns for name, ns in parts.items() if name.startswith("idle"))
    assert _takes(idle, program.window - program.busy)


def test_syncs_are_counted_by_step_and_kind(analysed: tuple[Program, dict[str, Any]]) -> None:
    program, trace = analysed
    syncs = trace["syncs"]
    assert syncs["by_kind"] == ({program.syncs: STEPS} if program.syncs else {})
    assert syncs["by_step"] == (1 if program.syncs else 0,) * STEPS
    # The profiler's own at its end, and one after each step marked by hand.
    assert syncs["outside_steps"] == (1 + STEPS if program.name == "between_steps" else 1)


def test_what_each_sync_blocks_and_exposes(analysed: tuple[Program, dict[str, Any]]) -> None:
    program, trace = analysed
    assert _takes(trace["syncs"]["blocked_ns"], program.blocked)
    assert _takes(trace["syncs"]["exposed_idle_ns"], program.exposed)
    assert [site["count"] for site in trace["syncs"]["sites"]] == ([STEPS] if program.syncs else [])


def test_the_upper_bound_is_never_below_what_the_syncs_cost(analysed: tuple[Program, dict[str, Any]]) -> None:
    program, trace = analysed
    saved_ms = program.window - program.left_ms
    assert trace["syncs"]["ceiling_ns"] / 1e6 >= saved_ms - STEPS * HOST_MS
    assert trace["syncs"]["ceiling_ns"] <= trace["syncs"]["blocked_ns"]


def test_launches_and_queues(analysed: tuple[Program, dict[str, Any]]) -> None:
    program, trace = analysed
    copies = sum(copy["count"] for copy in trace["copies"])
    launches = 1 + copies // STEPS if program.name == "graph" else program.kernels + copies // STEPS
    assert trace["launches"]["count"] == STEPS * launches
    assert trace["launches"]["activities"] == STEPS * program.kernels + copies
    queue = trace["queues"][0]
    if program.name == "full_queue":  # from when it is full, a launch waits for a kernel's end
        assert queue["max"] == 1024
        assert 0 < queue["full_ns"] / 1e6 <= STEPS * (1500 - 1024) * program.kernel_ms
    else:
        assert queue["full_ns"] == 0
