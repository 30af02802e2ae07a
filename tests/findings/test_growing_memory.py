"""A step that leaves memory behind is a finding; warm-up, batches in flight and what is released again are none."""

from pathlib import Path

import pytest

from builders import TraceBuilder
from steptrace.analysis import summarize
from steptrace.documents.finding import Finding
from steptrace.findings import find_in_trace

US, MS, KIB = 1_000, 1_000_000, 1024
#: Step of the allocation, step of the release (None: never), KiB.
Block = tuple[int, int | None, float]

STATE: list[Block] = [(0, None, 640), (1, None, 64)]
BATCHES: list[Block] = [(k, k + 1, 100 + 10 * (k % 3)) for k in range(8)]
#: Every step makes 8 KiB that nothing releases.
LEAK: list[Block] = [(k, None, 8) for k in range(8)]


def growth(
    folder: Path, lives: list[Block], *, first: int = 0, steps: int = 6, lost: bool = False, device: int = 1
) -> list[Finding]:
    """The findings on a trace of these blocks, each made by a line of its step, on a GPU of 1 MiB or the host (0)."""
    builder = TraceBuilder(deviceProperties=[{"id": 0, "name": "made", "totalGlobalMem": 1024 * KIB}])
    changes = []
    for k in range(steps):
        builder.step(first + k, k * MS, MS)
        builder.frame("train.py(7): step", k * MS + US, 500 * US)
        builder.op("aten::mul", k * MS + 2 * US, 400 * US)
        builder.kernel(k * MS + 3 * US, k * MS + 5 * US, 990 * US)
    for address, (begin, end, size) in enumerate(lives):
        if begin < steps:
            changes.append((begin * MS + (10 + address) * US, int(size * KIB), address + 1))
        if end is not None and end < steps:
            changes.append((end * MS + (500 + address) * US, -int(size * KIB), address + 1))
    total = 0
    for ts, size, address in sorted(changes):
        total += size + lost
        args = {
            "Device Type": device,
            "Device Id": device - 1,
            "Addr": address,
            "Bytes": size,
            "Total Allocated": total,
        }
        event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 100, "ts": ts / 1000}
        builder.events.append({**event, "s": "t", "args": {**args, "Total Reserved": 1000 * KIB}})
    entry = summarize([builder.write(folder / "made.json")])[0].traces[0]
    return [finding for finding in find_in_trace(entry) if finding.rule == "growing_memory"]


def test_a_leak_is_reported_with_its_size_its_line_and_when_the_gpu_is_full(tmp_path: Path) -> None:
    (finding,) = growth(tmp_path, [*STATE, *BATCHES, *LEAK])
    # At the peak: 704 KiB of state, a batch and the one before, six steps' leaks; of steps 1 to 4 each left 8 KiB.
    left = 1024 - 704 - (120 + 110) - 48
    assert finding.claim == (
        f"memory of GPU 0 grows by 8.00 KiB per step: at this rate it is full after at most {left // 8} more steps"
    )
    assert finding.severity == "high"
    assert finding.source is not None
    assert (finding.source.file, finding.source.line) == ("train.py", 7)
    assert finding.evidence[0] == "4 of 4 steps left at least 4.00 KiB behind"
    assert "allocated by aten::mul at train.py:7" in finding.evidence[2]


@pytest.mark.parametrize(
    ("lives", "first"),
    [
        ([*STATE, *BATCHES], 0),  # state that the first steps make, batches that the next step replaces
        ([(k, k + 3, 100) for k in range(8)], 7),  # a queue of batches
        ([(k, None, 8) for k in range(3)], 0),  # caches that fill up
        ([(k, 5, 8) for k in range(5)], 7),  # gathered until the end of an epoch
        ([(k, None, 3) for k in range(8)], 7),  # little
        ([(k, None, 0.5) for k in range(8) for _ in range(40)], 7),  # losses of 40 batches
        ([(k, 9 if k == 5 else k + 1, 8) for k in range(8)], 7),  # made anew by every step
    ],
)
def test_what_does_not_stay_or_does_not_go_on_is_no_leak(tmp_path: Path, lives: list[Block], first: int) -> None:
    assert growth(tmp_path, lives, first=first) == []


def test_three_steps_are_enough_where_none_is_the_program_s_first(tmp_path: Path) -> None:
    assert len(growth(tmp_path, LEAK, first=7, steps=3)) == 1
    assert growth(tmp_path, LEAK, first=0, steps=3) == []


def test_few_steps_are_an_info_and_predict_nothing(tmp_path: Path) -> None:
    (few,), (enough,) = (growth(tmp_path, LEAK, first=7, steps=steps) for steps in (4, 5))
    assert (few.severity, few.claim) == ("info", "memory of GPU 0 grows by 8.00 KiB per step")
    assert "so few steps" in few.evidence[-1]
    assert (enough.severity, "full after" in enough.claim) == ("high", True)


def test_a_trace_that_lost_events_is_not_accused(tmp_path: Path) -> None:
    assert growth(tmp_path, LEAK, first=7, lost=True) == []


def test_on_the_host_a_full_buffer_may_look_the_same(tmp_path: Path) -> None:
    (finding,) = growth(tmp_path, LEAK, first=7, device=0)
    assert (finding.severity, finding.claim) == ("info", "memory of the host grows by 8.00 KiB per step")
    assert "releases" in finding.evidence[-1]
