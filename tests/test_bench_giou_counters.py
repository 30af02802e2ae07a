"""bench/giou_counters.py: what it makes of Nsight Compute's table, with a program that writes one in its place."""

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest

pytest.importorskip("torch")

BENCH = Path(__file__).parents[1] / "bench" / "giou_counters.py"
HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
EMPTY = "(anonymous namespace)::nothing_kernel()"
FORWARD = "void loss_kernel<float, true>(float*)"
SUM = "sum(float*)"
DURATION = "gpu__time_duration.sum"
HITS = "lts__t_sector_hit_rate.pct"
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
LAUNCHES = (
    ("made before any call", {DURATION: "1"}),
    (EMPTY, {DURATION: "900"}),
    (
        FORWARD,
        {DURATION: "1,234.50", HITS: "n/a", STALL.format("barrier"): "2", STALL.format("long_scoreboard"): "7.5"},
    ),
    (SUM, {DURATION: "2,000", "a counter nobody asked for": "1"}),
    (EMPTY, {DURATION: "900"}),
    (FORWARD, {DURATION: "1,300"}),
)
CALL = {"batch": 8, "boxes": 64, "mode": "forward", "implementation": "fused", "bytes_moved": 100}

FAKE = """#!{python}
import json, sys
if "--version" in sys.argv:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 1)")
    sys.exit()
log, calls = (sys.argv[sys.argv.index(name) + 1] for name in ("--log-file", "--calls"))
open(log, "w").write({table!r})
open(calls, "w").write(json.dumps([{call!r}] * {calls}))
sys.exit({code})
"""


def table() -> str:
    lines = ["==PROF== Connected to process 1 (/usr/bin/python3)", HEAD]
    for number, (kernel, counters) in enumerate(LAUNCHES):
        for counter, value in counters.items():
            fields = [number, 1, "python3", "host", kernel, 1, 7, "(256, 1, 1)", "(64, 1, 1)", 0, "9.0"]
            lines.append(
                ",".join(f'"{field}"' for field in [*fields, "Command line profiler metrics", counter, "", value])
            )
    return "\n".join([*lines, "==PROF== Disconnected from process 1"]) + "\n"


def started(*arguments: str) -> tuple[str | int | None, str]:
    """The benchmark's exit code or last words, and what it printed; it runs here, as a process would import torch."""
    printed = io.StringIO()
    try:
        with (
            contextlib.redirect_stdout(printed),
            mock.patch.object(sys, "argv", ["giou_counters.py", *arguments]),
            mock.patch.object(sys, "path", [str(BENCH.parent), *sys.path]),
        ):
            runpy.run_path(str(BENCH), run_name="__main__")
    except SystemExit as ended:
        return ended.code, printed.getvalue()
    return 0, printed.getvalue()


def run(folder: Path, *, written: str, calls: int = 2, code: int = 0) -> tuple[str | int | None, str]:
    fake = folder / "ncu"
    fake.write_text(FAKE.format(python=sys.executable, table=written, call=CALL, calls=calls, code=code))
    fake.chmod(0o755)
    return started("--ncu", str(fake), "--json", str(folder / "out.json"))


def test_the_kernels_of_each_call_and_what_they_wait_for(tmp_path: Path) -> None:
    ended, printed = run(tmp_path, written=table())
    assert ended == 0
    figures = json.loads((tmp_path / "out.json").read_text())
    assert (figures["ncu"], figures["predictions"]) == ("2025.3.1.0", "float32")
    kept = ("kernel", "duration_ns", "stalled_most_on", "implementation")
    assert [[row.get(key) for key in kept] for row in figures["rows"]] == [
        [FORWARD, 1234.5, "long_scoreboard", "fused"],
        [SUM, 2000.0, None, "fused"],
        [FORWARD, 1300.0, None, "fused"],
    ]
    assert "l2_hit_pct" not in figures["rows"][0]  # "n/a" is no figure
    assert "1,234.5" in printed


@pytest.mark.parametrize(
    ("written", "calls", "code", "reason"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM: no permission\n", 2, 1, "ncu ended with 1: ==ERROR== ERR_NVGPUCTRPERM"),
        ("==WARNING== No kernels were profiled.\n", 2, 0, "ncu read no kernel; it wrote: ==WARNING== No kernels"),
        (table(), 3, 0, "3 calls were made, and 2 were counted"),
    ],
)
def test_counters_that_could_not_be_read_are_not_measured(
    tmp_path: Path, written: str, calls: int, code: int, reason: str
) -> None:
    ended, _ = run(tmp_path, written=written, calls=calls, code=code)
    assert str(ended).startswith(f"not measured: {reason}")
    assert not (tmp_path / "out.json").exists()


def test_without_the_program_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "CUDA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert "there is no ncu" in str(started()[0])
