"""Launches and peak memory of a program's second step: of the prediction, and of PyTorch's CUDA code.

    python tests/standin/launches.py predict|device [PROGRAM ...]

Writes one JSON object per program: `launches` by operator, and `peak` in bytes.
"""

import json
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import programs

#: Runtime calls that put work on a stream.
_WORK = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
_COPIES = ("cudaMemcpyAsync", "cudaMemsetAsync", "cudaMemcpy", "cudaMemset")


def predict(name: str) -> dict[str, Any]:
    """As `steptrace predict` has it."""
    from steptrace.estimate.launches import launches
    from steptrace.predict import predict_syncs

    torch.manual_seed(0)
    with predict_syncs() as syncs:
        step = programs.PROGRAMS[name].build()
        step()
        syncs.reset()
        step()
        found: Counter[str] = Counter()
        for call in syncs.operators:
            found[call.name.split(".")[1]] += launches(call) * call.calls
        return {"launches": dict(found), "peak": syncs.peak_memory_bytes}


def measure(name: str) -> dict[str, Any]:
    """As the CUDA device that is there has it."""
    torch.manual_seed(0)
    step = programs.PROGRAMS[name].build()
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.synchronize()
    with torch.profiler.profile() as profiler, tempfile.TemporaryDirectory() as folder:
        step()
        profiler.stop()
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return {"launches": by_operator(events), "peak": peak}


def by_operator(events: list[dict[str, Any]]) -> dict[str, int]:
    """Launches of a trace by the innermost operator that dispatching names: all under it are its own."""
    operators: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        if event.get("cat") == "cpu_op" and "dur" in event:
            operators.setdefault(event["tid"], []).append(event)
    found: Counter[str] = Counter()
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and event["name"] in (*_WORK, *_COPIES):
            running = operators.get(event["tid"], ())
            around = [one for one in running if one["ts"] <= event["ts"] < one["ts"] + one["dur"]]
            chain = [one["name"].partition("::")[2] for one in sorted(around, key=lambda one: (one["ts"], -one["dur"]))]
            found[" > ".join(chain) or event["name"]] += 1
    return dict(found)


def main(mode: str, names: list[str]) -> None:
    """Write the programs of that name, or all whose library is there."""
    for name in names or [name for name, one in programs.PROGRAMS.items() if programs.available(one.needs)]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = (predict if mode == "predict" else measure)(name)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        sys.stdout.write(json.dumps({"name": name, **result}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
