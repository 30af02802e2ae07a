"""Hardware counters of single kernels, read with Nsight Compute (`ncu`): what a kernel waits for.

`ncu` runs a program and replays each of its kernels until all counters are read. Its table has one line per kernel and
counter. Which kernels belong to which call is told by the empty kernel that is launched before each call.
"""

import csv
import io
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: The kernel of `steptrace_giou.ops.empty_call`, which stands before every call.
DELIMITER: Final = "nothing_kernel"
#: Name in the results -> counter, as Nsight Compute calls it. Nanoseconds, bytes, per cent and counts.
COUNTERS: Final = {
    "duration_ns": "gpu__time_duration.sum",
    "dram_bytes": "dram__bytes.sum",
    "dram_pct_of_peak": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_pct_of_peak": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "blocks": "launch__grid_size",
    "threads_per_block": "launch__block_size",
}
_STALL: Final = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
#: What warps wait for, in warps per issued instruction: the largest says what bounds a kernel.
STALLS: Final = (
    "long_scoreboard",
    "short_scoreboard",
    "barrier",
    "membar",
    "lg_throttle",
    "math_pipe_throttle",
    "wait",
    "no_instruction",
    "drain",
)
_BY_COUNTER: Final = {counter: name for name, counter in COUNTERS.items()}
_BY_COUNTER |= {_STALL.format(stall): f"stalled_{stall}" for stall in STALLS}


@dataclass(frozen=True)
class Kernel:
    """One launch and its counters by name; a counter that could not be read is missing."""

    name: str
    values: dict[str, float]


def find_ncu(named: str | None = None) -> str | None:
    """The path of `ncu`: as named, on the path, or beside CUDA's compiler; None if there is none."""
    beside = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "ncu"
    return shutil.which(named) if named else shutil.which("ncu") or shutil.which(beside)


def read_counters(ncu: str, command: Sequence[str], log: Path, seconds: float) -> list[list[Kernel]]:
    """Run `command` under `ncu`; return the kernels of each call, in the order of the calls.

    Only what `command` does between cudaProfilerStart and cudaProfilerStop is read. Clocks are left as they are.

    Raises:
        RuntimeError: `ncu` failed or took longer than `seconds`, with what it said.
    """
    options = ["--csv", "--print-units", "base", "--profile-from-start", "off", "--clock-control", "none"]
    called = [ncu, *options, "--metrics", ",".join(_BY_COUNTER), "--log-file", str(log), *command]
    try:
        done = subprocess.run(
            called,
            env=os.environ | {"LC_ALL": "C"},  # else its numbers are written as the machine's language has them
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"ncu took longer than {seconds:g} s") from error
    written = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    if done.returncode:
        errors = [line for line in written.splitlines() if line.startswith("==ERROR==")]
        errors = errors or done.stderr.splitlines()[-3:]
        raise RuntimeError(f"ncu ended with {done.returncode}: {' '.join(errors) or 'it said nothing'}")
    return split_calls(parse(written))


def parse(written: str) -> list[Kernel]:
    """The launches in what `ncu --csv` wrote, in their order; lines that are no table are passed over.

    Raises:
        RuntimeError: there is no table in it.
    """
    lines = [line for line in written.splitlines() if line.startswith('"')]
    launches: dict[str, Kernel] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        kernel = launches.setdefault(row["ID"], Kernel(row["Kernel Name"], {}))
        name = _BY_COUNTER.get(row["Metric Name"])
        if name is not None and (value := _number(row["Metric Value"])) is not None:
            kernel.values[name] = value
    if not launches:
        raise RuntimeError(f"ncu read no kernel; it wrote: {written.strip()[-500:] or 'nothing'}")
    return list(launches.values())


def split_calls(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    """The kernels after each empty one, up to the next."""
    return list(_split(kernels))


def main_stall(kernel: Kernel) -> str | None:
    """What the kernel's warps wait for most; None where no such counter was read."""
    stalls = {name: kernel.values[name] for name in (f"stalled_{stall}" for stall in STALLS) if name in kernel.values}
    return max(stalls, key=lambda name: stalls[name]).removeprefix("stalled_") if stalls else None


def _split(kernels: Sequence[Kernel]) -> Iterator[list[Kernel]]:
    call: list[Kernel] | None = None
    for kernel in kernels:
        if DELIMITER in kernel.name:
            if call is not None:
                yield call
            call = []
        elif call is not None:
            call.append(kernel)
    if call is not None:
        yield call


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None  # "n/a", where a device has no such counter
