"""How fast and how lean a trace is read, beside `json.load` of the same file in the same run.

    python bench/trace_load.py [TRACE] [--mb 200] [--gz]

A trace is repeated with shifted times and ids up to the wished size and read back. Each reading runs in a process of
its own, so that its peak memory is its own. Without TRACE a small training trace is made up.
"""

import argparse
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_SHIFTED = ("correlation", "External id", "Python id", "Python parent id", "Sequence number")


def made_up_trace(steps: int = 20, ops: int = 60) -> dict[str, Any]:
    """A trace with operators, launches, kernels and frames in the proportions of a real one."""
    events: list[dict[str, Any]] = []
    ts, number = 1_000_000.0, 1
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


def write_repeated(trace: dict[str, Any], out: Path, megabytes: float) -> int:
    """Repeat the events until the JSON has the wished size; returns its size in bytes."""
    events = [event for event in trace["traceEvents"] if isinstance(event.get("ts"), int | float)]
    begin = min(event["ts"] for event in events)
    span = max(event["ts"] + event.get("dur", 0) for event in events) - begin
    shift = 1 + max(
        (event["args"][key] for event in events for key in _SHIFTED if isinstance(event.get("args", {}).get(key), int)),
        default=0,
    )
    size, copy = 0, 0
    opener = gzip.open if out.suffix == ".gz" else open
    with opener(out, "wt") as file:
        size += file.write('{"traceEvents": [\n')
        while size < megabytes * 1e6:
            for event in events:
                args = event.get("args", {})
                moved = {key: args[key] + copy * shift for key in _SHIFTED if isinstance(args.get(key), int)}
                # Kineto writes "ph" first.
                again = {"ph": event["ph"], **event, "ts": event["ts"] - begin + copy * (span + 10)}
                if args:
                    again["args"] = {**args, **moved}
                size += file.write((",\n" if size > 20 else "") + json.dumps(again))
            copy += 1
        size += file.write("\n]}\n")
    return size


def measure(how: str, path: Path) -> dict[str, float]:
    """Read `path` in a process of its own: CPU seconds, wall seconds, and peak memory beyond the imports, in MB."""
    command = [sys.executable, __file__, str(path), "--measure", how]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def _measure_here(how: str, path: Path) -> None:
    import steptrace.trace.link as link
    import steptrace.trace.read as read

    def load_json(file: Path) -> None:
        opener = gzip.open if file.suffix == ".gz" else open
        with opener(file, "rt") as text:
            json.load(text)

    action = {"json.load": load_json, "columns": read.read_raw, "linked tables": link.read_trace}[how]
    before = resource.getrusage(resource.RUSAGE_SELF)
    wall = time.perf_counter()
    action(path)
    wall = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"cpu_s": cpu, "wall_s": wall, "peak_mb": (after.ru_maxrss - before.ru_maxrss) / 1024}))


def main() -> None:
    """Run the comparison and print one line per way of reading."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--mb", type=float, default=200.0)
    parser.add_argument("--gz", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        _measure_here(arguments.measure, arguments.trace)
        return
    trace = made_up_trace()
    if arguments.trace:
        opener = gzip.open if arguments.trace.suffix == ".gz" else open
        with opener(arguments.trace, "rt") as file:
            trace = json.load(file)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("trace.json.gz" if arguments.gz else "trace.json")
        megabytes = write_repeated(trace, path, arguments.mb) / 1e6
        print(f"{megabytes:.0f} MB of JSON")
        reference = None
        for how in ("json.load", "columns", "linked tables"):
            result = measure(how, path)
            reference = reference or result
            print(
                f"{how:14} {result['cpu_s'] * 1e3 / megabytes:6.1f} ms CPU per MB "
                f"({reference['cpu_s'] / result['cpu_s']:.1f}x as fast), "
                f"{result['peak_mb'] / megabytes:5.2f} bytes of memory per byte"
            )


if __name__ == "__main__":
    main()
