"""Kernels of public traces, as facts: operators with the sizes of their tensors, and the time of their kernels.

    python bench/kernels_of_traces.py TRACE... > bench/kernels_of_traces.csv

The file that is kept is of the H100 traces of AMD-AGI/TraceLens (MIT licence, tests/traces/h100 at commit 171dd747):
inference of transformers of Hugging Face in bfloat16. Each row is an operator on tensors of the same sizes and
strides, with the mean of its calls. Products and attention are left out: aiconfigurator has more of them.
"""

import argparse
import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from steptrace.analysis.roofline import calls_with_sizes
from steptrace.documents.estimate import OperatorCalls
from steptrace.estimate.gpus import gpu_of_driver
from steptrace.estimate.traced_operator import recorded_call
from steptrace.estimate.work import kernels_of
from steptrace.trace.link import read_trace

FILE: Final = Path(__file__).with_name("kernels_of_traces.csv")
#: Shorter ones are mostly launch.
SHORTEST_NS: Final = 20_000
COLUMNS: Final = ("gpu", "operator", "types", "sizes", "strides", "calls", "microseconds", "trace")


class TracedCall(NamedTuple):
    """A row of the file that is kept: seconds are the mean of `calls` calls in a trace."""

    gpu: str
    call: OperatorCalls
    seconds: float
    calls: int
    trace: str


def read_calls() -> Iterator[TracedCall]:
    """The rows of the file that is kept."""
    with FILE.open() as file:
        for row in csv.DictReader(file):
            call = recorded_call(row["operator"], row["types"], row["sizes"], row["strides"])
            if call is None:
                raise SystemExit(f"{FILE.name}: {row['operator']} has no rule any more; write the file again")
            yield TracedCall(row["gpu"], call, float(row["microseconds"]) / 1e6, int(row["calls"]), row["trace"])


def rows_of(path: Path) -> Iterator[tuple[object, ...]]:
    """The rows of a trace."""
    trace = read_trace(path)
    gpu = gpu_of_driver(trace.meta.device_name(trace.devices[0]))
    if gpu is None:
        raise SystemExit(f"{path}: the trace is of a GPU without a data sheet in gpus.toml")
    times: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for row in calls_with_sizes(trace).itertuples(index=False):
        call = recorded_call(row.name, row.types, row.sizes, row.strides)
        kernels = () if call is None else kernels_of(call, tf32=row.tf32)
        if kernels and not kernels[0].flop and row.ns >= SHORTEST_NS:
            times[row.name, row.types, row.sizes, row.strides].append(row.ns)
    for key, found in sorted(times.items()):
        lists = [json.dumps(json.loads(text), separators=(",", ":")) for text in key[1:]]
        yield gpu.name, key[0], *lists, len(found), round(sum(found) / len(found) / 1e3, 1), path.name


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for trace in parser.parse_args().traces:
        writer.writerows(rows_of(trace))
