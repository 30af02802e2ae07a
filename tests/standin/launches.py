"""Launches and peak memory of a program's second step: of the prediction, and of PyTorch's CUDA code.

    python tests/standin/launches.py predict|device [PROGRAM ...]
    python tests/standin/launches.py predict|device --idioms

    python tests/standin/launches.py predict|device --idiom IDIOM

Writes one JSON object per program or idiom: `launches` by operator, and of a program `peak` in bytes. A prediction adds
`reads`, the values that the host reads, as FAKECUDA_COMPUTED_VALUES has them.
"""

import json
import sys
import tempfile
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import idioms
import programs

#: Runtime calls that put work on a stream.
_WORK = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
_CATEGORIES = ("cpu_op", "cuda_runtime", "cuda_driver")
_COPIES = ("cudaMemcpyAsync", "cudaMemsetAsync", "cudaMemcpy", "cudaMemset")


@contextmanager
def host_reads() -> Iterator[list[str]]:
    """What operators of a prediction give the host meanwhile, but for values that lie behind others in a tensor."""
    from steptrace.predict.syncs import Syncs

    reads: list[str] = []
    ran = Syncs.ran

    def noted(self: Syncs, overload: Any, call: Any, virtual: Any, result: Any, node: object) -> None:
        ran(self, overload, call, virtual, result, node)
        first = call[0][0] if call[0] else None
        if overload.packet == "_local_scalar_dense" and not first._inner.storage_offset():
            reads.append(_digits(torch.tensor(result, dtype=first.dtype)))
        elif overload.packet == "masked_select":
            reads.append(_digits(torch.tensor(len(result))))
        elif overload.packet == "_grouped_mm" and len(virtual) > 2:
            reads.append(_digits(virtual[2]._inner))

    with mock.patch.object(Syncs, "ran", noted):
        yield reads


def _digits(values: torch.Tensor) -> str:
    return values.numpy().tobytes().hex()


def predict(name: str) -> dict[str, Any]:
    """As `steptrace predict` has it."""
    from steptrace.predict import predict_syncs

    torch.manual_seed(0)
    with predict_syncs() as syncs:
        step = programs.PROGRAMS[name].build()
        step()
        syncs.reset()
        with host_reads() as reads:
            step()
        return {"launches": estimated(syncs.operators), "peak": syncs.peak_memory_bytes, "reads": reads}


def estimated(operators: Iterable[Any]) -> dict[str, int]:
    """Launches of predicted operators, by their name."""
    from steptrace.estimate.launches import launches

    by_name: Counter[str] = Counter()
    for call in operators:
        by_name[call.name.split(".")[1]] += launches(call) * call.calls
    return dict(by_name)


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


def predict_idioms(codes: list[str]) -> Iterator[dict[str, Any]]:
    """Of each idiom's second run, as `steptrace predict` has it."""
    from steptrace.predict import predict_syncs

    with predict_syncs() as syncs:
        for code, run in idioms.steps(codes):
            run()
            syncs.reset()
            with host_reads() as reads:
                error = run()
            yield {"name": code, "launches": estimated(syncs.operators), "error": error, "reads": reads}


def measure_idioms(codes: list[str]) -> Iterator[dict[str, Any]]:
    """Of each idiom's second run, as the CUDA device that is there has it."""
    steps = dict(idioms.steps(codes))
    for run in steps.values():
        run()
    torch.cuda.synchronize()
    errors = []
    with torch.profiler.profile() as profiler, tempfile.TemporaryDirectory() as folder:
        for number, run in enumerate(steps.values()):
            with torch.profiler.record_function(f"idiom {number}"):
                errors.append(run())
        profiler.stop()
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    labels = {event["name"]: event for event in events if event.get("cat") == "user_annotation"}
    events = sorted((event for event in events if event.get("cat") in _CATEGORIES), key=lambda event: event["ts"])
    starts = [event["ts"] for event in events]
    for number, (code, error) in enumerate(zip(steps, errors, strict=True)):
        label = labels[f"idiom {number}"]
        inside = slice(bisect_left(starts, label["ts"]), bisect_left(starts, label["ts"] + label["dur"]))
        yield {"name": code, "launches": by_operator(events[inside]), "error": error}


def by_operator(events: list[dict[str, Any]]) -> dict[str, int]:
    """Launches of a trace by the innermost operator that dispatching names: all under it are its own."""
    operators: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        if event.get("cat") == "cpu_op" and "dur" in event:
            operators.setdefault(event["tid"], []).append(event)
    counts: Counter[str] = Counter()
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and event["name"] in (*_WORK, *_COPIES):
            running = operators.get(event["tid"], ())
            around = [one for one in running if one["ts"] <= event["ts"] < one["ts"] + one["dur"]]
            chain = [one["name"].partition("::")[2] for one in sorted(around, key=lambda one: (one["ts"], -one["dur"]))]
            counts[" > ".join(chain) or event["name"]] += 1
    return dict(counts)


def main(mode: str, names: list[str]) -> None:
    """Write the idioms, or the programs of that name, or all whose library is there."""
    if names[:1] in (["--idioms"], ["--idiom"]):
        codes = names[1:] or [idiom.code for idiom in idioms.read_table()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for row in (predict_idioms if mode == "predict" else measure_idioms)(codes):
                sys.stdout.write(json.dumps(row) + "\n")
        return
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
