"""How fast and how lean a trace is read and measured, beside Holistic Trace Analysis and `json.load`, in one run.

    python bench/trace_load.py [TRACE] [--mb 450] [--gz] [--hta [VENV]] [--against SRC]

A trace is repeated with shifted times and ids up to the wished size and read back. Each reading runs in a process of
its own, so that its peak memory is its own. Without TRACE a real one of the shared traces is taken, or else a small one
is made up. `--hta` compares with Holistic Trace Analysis 0.6.1, its nanosecond rounding off, in a virtual environment
of its own (it needs pandas 2), which is made if it is not there.

Times are CPU seconds of the process and its children; wall time stands beside them and means something on a quiet
machine only. Memory is the peak resident size of the whole process, interpreter and libraries included.

Then whole processes of the command line: `analyze` with and without its page, the same of the trace as it is, not
repeated, and `--help`. With --against, the `src` folder of another checkout, each is done by that one too, in turn.
`analyze` of a small trace, one of the shared ones in 25 KB or else the made-up one, stands beside a Python process that
imports numpy and pandas and ends.

The last line asks whether memory grows with the text: the same events, each with arguments that nothing here needs, are
three times the size and must take no more.
"""

import argparse
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SHARED = Path(os.environ.get("STEPTRACE_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
HTA = ("traceinsight==0.6.1", "pandas<2.3", "numpy<2.2")
#: What is asked of this reader with its metrics, against HTA.
TIMES_AS_FAST = 9.0
SHARE_OF_MEMORY = 0.25
MEMORY_GROWTH = 1.05
#: And of `analyze` without its page, which computes everything and writes it.
WHOLE_TIMES_AS_FAST = 9.0
WHOLE_TIMES_LEANER = 6.0
#: And of a small trace to its page, in times of the import of numpy and pandas.
SMALL_TIMES_IMPORT = 2.5
#: How often these two are taken; their medians count.
ROUNDS = 5

_STEP = re.compile(r"ProfilerStep#(\d+)")
_SHIFTED = ("correlation", "External id", "Python id", "Python parent id", "Sequence number")


def made_up_trace(steps: int = 20, ops: int = 60) -> dict[str, Any]:
    """A trace with operators, launches, kernels and frames in the proportions of a real one."""
    events: list[dict[str, Any]] = []
    ts = 1_000_000.0
    number = 1
    for step in range(steps):
        begin = ts
        for _ in range(ops):
            host = {"pid": 1, "tid": 1}
            frame = {"Python id": number, "Python parent id": None, "Ev Idx": number}
            op = {"External id": number, "Input Dims": [[256, 3, 64, 64], [10, 3, 3, 3]], "Ev Idx": number}
            call = {"External id": number, "cbid": 211, "correlation": number}
            gpu = {"device": 0, "stream": 7, "correlation": number, "grid": [64, 1, 1], "block": [128, 1, 1]}
            shape = {"ph": "X", "cat": "python_function", "name": f"model.py({number % 90}): forward", **host}
            events.append({**shape, "ts": ts, "dur": 40.5, "args": frame})
            events.append(
                {"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", **host, "ts": ts + 1, "dur": 30.25, "args": op}
            )
            launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **host}
            events.append({**launch, "ts": ts + 5, "dur": 7.125, "args": call})
            kernel = {"ph": "X", "cat": "kernel", "name": "void conv<float, 128>(int, float*)", "pid": 0, "tid": 7}
            events.append({**kernel, "ts": ts + 20, "dur": 25.5, "args": gpu})
            ts += 50.0
            number += 1
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1}
        events.append({**mark, "ts": begin, "dur": ts - begin, "args": {"External id": 10**6 + step}})
    return {"schemaVersion": 1, "traceEvents": events}


def write_repeated(trace: dict[str, Any], out: Path, megabytes: float, *, padding: int = 0) -> int:
    """Repeat the events until the JSON has the wished size; returns its size in bytes.

    `padding` times the event's own text goes into one more argument of it; it does not count for the wished size.
    """
    events = [event for event in trace["traceEvents"] if isinstance(event.get("ts"), int | float)]
    begin = min(event["ts"] for event in events)
    span = max(event["ts"] + event.get("dur", 0) for event in events) - begin
    shift = 1 + max(
        (event["args"][key] for event in events for key in _SHIFTED if isinstance(event.get("args", {}).get(key), int)),
        default=0,
    )
    indices = [int(match[1]) for event in events if (match := _STEP.fullmatch(event.get("name", "")))]
    steps = max(indices, default=0) - min(indices, default=0) + 1
    size = 0
    copy = 0
    padded = 0
    opener = gzip.open if out.suffix == ".gz" else open
    with opener(out, "wt") as file:
        size += file.write('{"traceEvents": [\n')
        while size - padded < megabytes * 1e6:
            for event in events:
                args = event.get("args", {})
                moved = {key: args[key] + copy * shift for key in _SHIFTED if isinstance(args.get(key), int)}
                # Kineto writes "ph" first.
                again = {"ph": event["ph"], **event, "ts": event["ts"] - begin + copy * (span + 10)}
                if args:
                    again["args"] = {**args, **moved}
                if name := _STEP.fullmatch(event.get("name", "")):
                    again["name"] = f"ProfilerStep#{int(name[1]) + copy * steps}"
                text = json.dumps(again)
                if padding:
                    again["args"] = {**again.get("args", {}), "padding": "x" * (padding * len(text))}
                    padded -= len(text)
                    text = json.dumps(again)
                    padded += len(text)
                size += file.write((",\n" if size > 20 else "") + text)
            copy += 1
        size += file.write("\n]}\n")
    return size


def measure(how: str, path: Path, python: str = sys.executable) -> dict[str, float]:
    """Do `how` to `path` in a process of its own: CPU seconds, wall seconds, peak memory in MB."""
    command = [python, __file__, str(path), "--measure", how]
    environment = {**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{how} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _load_json(path: Path) -> None:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as text:
        json.load(text)


def _columns(path: Path) -> None:
    from steptrace.trace.read import read_raw

    read_raw(path)


def _steptrace(path: Path) -> None:
    """Linked tables, then temporal breakdown, idle time, kernels, launches, queues and copies."""
    from steptrace.analysis import copies, idle, kernels, launches, steps, streams
    from steptrace.trace.link import read_trace

    trace = read_trace(path)
    steps.gpu_time(trace)
    steps.step_times(trace)
    idle.idle_by_stream(trace)
    idle.idle_gaps(trace)
    kernels.kernel_table(trace)
    kernels.kernel_types(trace)
    launches.launch_calls(trace)
    streams.queues(trace)
    copies.copies(trace)


def _hta(path: Path) -> None:
    """The same six analyses of Holistic Trace Analysis."""
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: str(path)}, include_last_profiler_step=True)
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_idle_time_breakdown(visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False)
    analysis.get_cuda_kernel_launch_stats(visualize=False)
    analysis.get_queue_length_summary()
    analysis.get_memory_bw_summary()


#: Whole processes of the command line, and whether their trace is the repeated one, None without any.
COMMANDS: dict[str, tuple[tuple[str, ...], bool | None]] = {
    "analyze --no-report": (("analyze", "--no-report"), True),
    "analyze": (("analyze",), True),
    "analyze (small)": (("analyze",), False),
    "--help": (("--help",), None),
}


def measure_command(arguments: Sequence[str], trace: Path | None, source: Path) -> dict[str, float]:
    """Run `steptrace` of the checkout whose `src` is given in a process of its own; figures as `measure` has them."""
    with tempfile.TemporaryDirectory() as out:
        given = [] if trace is None else [str(trace), "--out", out]
        return _measure_python(["-m", "steptrace.cli", *arguments, *given], source)


def _measure_python(arguments: Sequence[str], source: Path) -> dict[str, float]:
    """Run Python with these arguments and `source` in its path; figures as `measure` has them."""
    command = [sys.executable, *arguments]
    # With bytecode, as pip leaves it: the first of these calls compiles the checkout, and the others read that.
    environment = {**os.environ, "PYTHONPATH": str(source)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begin = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{errors.decode()[-2000:]}")
    wall = time.perf_counter() - begin
    return {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": wall, "peak_mb": used.ru_maxrss / 1024}


def _against_import(trace: Path) -> None:
    """Print what `analyze` with its page takes of a small trace, in times of the import of numpy and pandas."""
    source = Path(__file__).parents[1] / "src"

    def cpu(run: Callable[[], dict[str, float]]) -> float:
        return sorted(run()["cpu_s"] for _ in range(ROUNDS))[ROUNDS // 2]

    imports = cpu(lambda: _measure_python(["-c", "import numpy, pandas"], source))
    whole = cpu(lambda: measure_command(("analyze",), trace, source))
    met = "met" if whole <= SMALL_TIMES_IMPORT * imports else "NOT met"
    print(
        f"analyze of {trace.name}, {trace.stat().st_size / 1e3:.0f} kB: {whole:.2f} s of CPU, {whole / imports:.1f} "
        f"times the import of numpy and pandas, {imports:.2f} s (medians of {ROUNDS}; required "
        f"{SMALL_TIMES_IMPORT:g}: {met})"
    )


def _commands(large: Path, small: Path, against: Path | None, hta: dict[str, float] | None = None) -> None:
    """Print what each command takes here, and beside it what it takes there, and `analyze` against HTA."""
    here = Path(__file__).parents[1] / "src"
    print(
        f"\n{'steptrace':20}{'CPU s':>8}{'peak MB':>9}"
        + (f"{'against':>9}{'peak MB':>9}{'ratio':>7}" if against else "")
    )
    for name, (arguments, repeated) in COMMANDS.items():
        trace = None if repeated is None else large if repeated else small
        ours = measure_command(arguments, trace, here)
        line = f"{name:20}{ours['cpu_s']:8.2f}{ours['peak_mb']:9.0f}"
        if against:
            theirs = measure_command(arguments, trace, against)
            line += f"{theirs['cpu_s']:9.2f}{theirs['peak_mb']:9.0f}{theirs['cpu_s'] / ours['cpu_s']:6.1f}x"
        print(line)
        if hta and repeated and "--no-report" in arguments:
            times = hta["cpu_s"] / ours["cpu_s"]
            leaner = hta["peak_mb"] / ours["peak_mb"]
            met = times >= WHOLE_TIMES_AS_FAST and leaner >= WHOLE_TIMES_LEANER
            print(
                f"  against HTA: {times:.1f} times as fast, {leaner:.1f} times as lean (required "
                f"{WHOLE_TIMES_AS_FAST:g} and {WHOLE_TIMES_LEANER:g}: {'met' if met else 'NOT met'})"
            )


ACTIONS: dict[str, Callable[[Path], None]] = {
    "json.load": _load_json,
    "columns": _columns,
    "steptrace": _steptrace,
    "HTA 0.6.1": _hta,
}


def _measure_here(how: str, path: Path) -> None:
    wall = time.perf_counter()
    ACTIONS[how](path)
    wall = time.perf_counter() - wall
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
    print(json.dumps({"cpu_s": cpu, "wall_s": wall, "peak_mb": max(usage.ru_maxrss for usage in used) / 1024}))


def hta_python(venv: Path) -> str:
    """The interpreter of a virtual environment with HTA, which is made if it is not there."""
    python = venv / "bin" / "python"
    if not python.exists():
        print(f"making {venv} for Holistic Trace Analysis", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *HTA], check=True)
    return str(python)


def _load(path: Path | None) -> tuple[str, dict[str, Any]]:
    path = path or SHARED / "h100_qwen.json.gz"
    if not path.is_file():
        return "a made-up trace", made_up_trace()
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        return path.name, json.load(file)


def _report(results: dict[str, dict[str, float]], megabytes: float) -> None:
    print(f"{'':12}{'CPU s':>8}{'ms/MB':>8}{'wall s':>8}{'peak MB':>9}{'x text':>8}")
    for how, used in results.items():
        print(
            f"{how:12}{used['cpu_s']:8.2f}{used['cpu_s'] * 1e3 / megabytes:8.1f}{used['wall_s']:8.2f}"
            f"{used['peak_mb']:9.0f}{used['peak_mb'] / megabytes:8.2f}"
        )
    ours = results["steptrace"]
    for how in results.keys() - {"steptrace", "columns"}:
        times = results[how]["cpu_s"] / ours["cpu_s"]
        share = ours["peak_mb"] / results[how]["peak_mb"]
        print(f"steptrace against {how}: {times:.1f} times as fast, {share:.2f} of its memory")
        if how.startswith("HTA"):
            met = times >= TIMES_AS_FAST and share <= SHARE_OF_MEMORY
            print(f"required {TIMES_AS_FAST:g} times, {SHARE_OF_MEMORY:g} of the memory: {'met' if met else 'NOT met'}")


def _grows(trace: dict[str, Any], folder: Path, megabytes: float) -> None:
    """Print what the same events take as they are, and with arguments that make their text three times as long."""
    peaks = []
    sizes = []
    for padding in (0, 2):
        path = folder / "growth.json"
        sizes.append(write_repeated(trace, path, megabytes, padding=padding) / 1e6)
        peaks.append(measure("steptrace", path)["peak_mb"])
        path.unlink()
    met = "met" if peaks[1] <= MEMORY_GROWTH * peaks[0] else "NOT met"
    print(
        f"the same events in {sizes[0]:.0f} and {sizes[1]:.0f} MB: peaks of {peaks[0]:.0f} and {peaks[1]:.0f} MB "
        f"(required: no growth beyond {MEMORY_GROWTH - 1:.0%}: {met})"
    )


def main() -> None:
    """Run the comparison and print one line per way of reading."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--mb", type=float, default=450.0)
    parser.add_argument("--gz", action="store_true")
    parser.add_argument("--hta", nargs="?", type=Path, const=Path("build/hta"), metavar="VENV")
    parser.add_argument("--against", type=Path, metavar="SRC")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        _measure_here(arguments.measure, arguments.trace)
        return
    python = hta_python(arguments.hta) if arguments.hta else None
    name, trace = _load(arguments.trace)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("trace.json.gz" if arguments.gz else "trace.json")
        megabytes = write_repeated(trace, path, arguments.mb) / 1e6
        print(f"{name}, repeated to {megabytes:.0f} MB of JSON")
        results = {how: measure(how, path) for how in ("json.load", "columns", "steptrace")}
        if python:
            results["HTA 0.6.1"] = measure("HTA 0.6.1", path, python)
        _report(results, megabytes)
        small = Path(folder) / "small.json"
        small.write_text(json.dumps(trace))
        _commands(path, small, arguments.against, results.get("HTA 0.6.1"))
        path.unlink()
        shared = SHARED / "alexnet_cuda_sync.json.gz"
        small.write_text(json.dumps(made_up_trace(2, 10)))
        _against_import(shared if shared.is_file() else small)
        _grows(trace, Path(folder), arguments.mb / 3)


if __name__ == "__main__":
    main()
