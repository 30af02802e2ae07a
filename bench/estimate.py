"""How far estimates are from published measurements of real GPUs.

    python bench/estimate.py [--kernels KERNELS.csv] [--steps FOLDER] [--traces TRACE...] [--articles]

KERNELS.csv: see estimate_shares.py, which derives the constants from it. FOLDER is `scripts/asplos/label` of
sitar-lab/NeuSight (MIT licence): the operators of whole transformer steps in float32 and their time. All whole steps
are held out; of other GPUs than V100, P100, T4 and A100-40 no kernel was seen either. TRACE: real traces
with the sizes of inputs. `--articles` follows the studies that articles have published times of, at the articles' size.
"""

import argparse
import ast
import csv
import json
import random
import re
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from estimate_shares import SUM, Kernel, call, gpu_of, read_kernels
from steptrace.analysis.roofline import calls_with_sizes
from steptrace.commands.predict import follow, named_study
from steptrace.documents.estimate import OperatorCalls
from steptrace.estimate.gpus import gpu_of_driver
from steptrace.estimate.recorded import recorded_call
from steptrace.estimate.step import FollowedStep, estimate_prediction, estimate_step
from steptrace.estimate.work import work_of
from steptrace.trace.link import read_trace

FOLDERS = {
    "NVIDIA_H100_80GB_HBM3": "H100", "NVIDIA_A100_80GB_PCIe": "A100-80", "NVIDIA_A100-PCIE-40GB": "A100-40",
    "NVIDIA_L4": "L4", "Tesla_T4": "T4", "Tesla_V100-PCIE-32GB": "V100", "Tesla_P100-PCIE-16GB": "P100",
}  # fmt: skip
#: GPUs whose kernels gave constants.
CALIBRATION = frozenset(["V100", "P100", "T4", "A100-40"])
#: Sums that are drawn of each GPU's kernels.
SUMS = 200
_LAYER = re.compile(r"\.(?:h|layer|layers|block)\.0\b")
_NO_WORK = frozenset(
    ["view", "size", "getitem", "getattr", "permute", "transpose", "split", "dim", "unsqueeze", "expand", "finfo"]
)
#: These launch nothing where the tensor has that type, or is contiguous, already.
_CASTS = frozenset(["to", "type", "type_as", "float", "long", "bool"])
_DENSE = frozenset(["contiguous", "reshape"])


def of_kernels(kernels: list[Kernel]) -> Iterator[tuple[str, str, float, float, float]]:
    """GPU, class, ms measured, and the lowest and highest ms estimated, of each kernel."""
    for one in kernels:
        work = work_of(one.operator, gpu_of(one.gpu))
        assert work is not None
        yield one.gpu, work.rule.name, one.ms, 1e3 * work.time[0], 1e3 * work.time[1]


def of_sums(kernels: list[Kernel]) -> Iterator[tuple[str, str, float, float, float]]:
    """The same of sums of kernels of one GPU, drawn at random: how well the band of a step holds."""
    chosen = random.Random(0)
    for gpu in sorted({one.gpu for one in kernels}):
        of_gpu = [one for one in kernels if one.gpu == gpu]
        for _ in range(SUMS):
            drawn = chosen.sample(of_gpu, min(SUM, len(of_gpu)))
            estimate = estimate_step(FollowedStep([one.operator for one in drawn]), gpu_of(gpu))
            assert estimate.gpu_ms is not None
            yield gpu, f"sum of {len(drawn)}", sum(one.ms for one in drawn), *estimate.gpu_ms


def of_steps(folder: Path) -> Iterator[tuple[str, str, float, float, float]]:
    """The same of whole steps: the operators of one layer stand for all layers."""
    for path in sorted(folder.glob("*/*.csv")):
        name = re.fullmatch(r"(.+)-(train|inf)-(\d+)-(\d+)", path.stem)
        label = path.with_suffix(".json")
        if path.parent.name not in FOLDERS or name is None or not label.is_file() or "switch" in name[1]:
            continue
        measured = json.loads(label.read_text())
        calls = list(_operators(path, measured["num_layer"], train=name[2] == "train"))
        gpu = gpu_of(FOLDERS[path.parent.name])
        estimate = estimate_step(FollowedStep(calls), gpu)
        latency = "e2e_latency" if name[2] == "train" else "fw_latency"
        if estimate.step_ms is not None and measured.get(latency):
            yield gpu.name, name[2], float(measured[latency]), *estimate.step_ms


def _operators(path: Path, layers: int, *, train: bool) -> Iterator[OperatorCalls]:
    dtypes: dict[str, str] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            dtypes[row["Name"]] = row["dtype"]
            output = ast.literal_eval(row["output_shape"]) if row["output_shape"] else ()
            inputs = [tuple(shape) for shape in ast.literal_eval(row["input_shapes"]) if shape != [1]]
            if row["op"] in ("placeholder", "get_attr", "output") or len(output) < 2 or not inputs:
                continue
            words = re.findall(r"(?:function|method|class) '?(?:builtins\.)?(\w+)", row["target"])
            name = words[0] if words else row["target"].rpartition(".")[2]
            given = dtypes.get(row["_input_nodes"].strip("{}").partition(":")[0], "")
            if name in _NO_WORK or (name in _CASTS and given == row["dtype"]):
                continue
            if name in _DENSE and ast.literal_eval(row["input_contiguous"])[0]:
                continue
            if not train and ("dropout" in row["target"] or name == "drop"):  # passes its input on
                continue
            if row["op"] == "call_module" and given == "torch.int64":
                name, inputs = "embedding", [output]
            calls = layers if _LAYER.search(row["meta"]) or _LAYER.search(row["target"]) else 1
            yield from _with_backward(name, row["op"], inputs, output, calls, train=train)


def _with_backward(
    name: str, kind: str, inputs: list[tuple[int, ...]], output: tuple[int, ...], calls: int, *, train: bool
) -> Iterator[OperatorCalls]:
    rows = output[-2] if len(output) < 3 else _product(output[:-1])
    if name == "bmm" or (name == "matmul" and len(output) > 2):
        batch, (m, k), n = _product(output[:-2]), inputs[0][-2:], output[-1]
        made = call("bmm", [(batch, m, k), (batch, k, n)], (batch, m, n), calls)
        back = [call("bmm", [(batch, m, n), (batch, n, k)], (batch, m, k), calls),
                call("bmm", [(batch, k, m), (batch, m, n)], (batch, k, n), calls)]  # fmt: skip
    elif name in ("addmm", "matmul", *_LINEAR) or (kind == "call_module" and inputs[0][-1] != output[-1]):
        k, n = (inputs[1] if name == "addmm" else inputs[0])[-1], output[-1]
        made = call("mm", [(rows, k), (k, n)], (rows, n), calls)
        back = [call("mm", [(rows, n), (n, k)], (rows, k), calls), call("mm", [(k, rows), (rows, n)], (k, n), calls)]
    else:
        norm = "ln" in name or "norm" in name.lower()
        named = "_softmax" if name == "softmax" else "native_layer_norm" if norm else "elementwise"
        given = [shape for shape in inputs if len(shape) > 1 and _product(shape) <= _product(output)] or [output]
        made = call(named, given, output, calls)
        back = [call(named, [output, output], output, calls)]
    yield made
    if train:
        yield from back


#: Modules of the measured networks that are linear with as many outputs as inputs.
_LINEAR = frozenset(["query", "key", "value", "dense", "q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"])


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


def table(rows: list[tuple[str, str, float, float, float]]) -> str:
    """Errors of the bands' middles, and how often and how widely the bands hold what was measured."""
    groups: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    for gpu, what, *times in rows:
        groups[gpu, what].append((times[0], times[1], times[2]))
    lines = ["| GPU | what | measurements | mean error | within the band | median width |", "|---|---|---|---|---|---|"]
    for (gpu, what), times in sorted(groups.items()):
        error = statistics.mean(abs((low * high) ** 0.5 / ms - 1) for ms, low, high in times)
        inside = sum(low <= ms <= high for ms, low, high in times)
        width = statistics.median(high / low for _, low, high in times)
        mark = " (kernels seen)" if gpu in CALIBRATION else " (not seen)"
        lines.append(
            f"| {gpu}{mark} | {what} | {len(times)} | {error:.0%} | {inside / len(times):.0%} | {width:.1f}x |"
        )
    return "\n".join(lines)


def of_trace(path: Path) -> Iterator[tuple[str, str, float, float, float]]:
    """The same of the operators of a trace: of each class, and of all where none computes in TF32."""
    trace = read_trace(path)
    gpu = gpu_of_driver(trace.meta.device_name(trace.devices[0]))
    classes: dict[str, tuple[list[OperatorCalls], list[float]]] = defaultdict(lambda: ([], []))
    if gpu is not None:
        for row in calls_with_sizes(trace).itertuples(index=False):
            recorded = recorded_call(row.name, row.types, row.sizes, row.strides)
            work = None if recorded is None else work_of(recorded, gpu, tf32=row.tf32)
            if work is not None and work.rule.not_covered is None:
                calls, times = classes[work.rule.name]
                calls.append(work.call)
                times.append(row.ns / 1e6)
        if classes and not any(row.tf32 for row in calls_with_sizes(trace).itertuples(index=False)):
            every = zip(*classes.values(), strict=True)
            calls, times = (list(chain.from_iterable(lists)) for lists in every)
            classes["all of these"] = (calls, times)
        for name, (calls, times) in sorted(classes.items()):
            estimate = estimate_step(FollowedStep(calls, tf32="TF32" in name), gpu)
            assert estimate.gpu_ms is not None
            yield gpu.name, f"{path.name.partition('.')[0]}: {name}", sum(times), *estimate.gpu_ms


#: Study, variant, GPU, published ms, the phases that they are of, and what they are.
ARTICLES = [
    ("masked_loss", "boolean_mask", "A10G", 1300.0, None, "step, profiled"),
    ("masked_loss", "ignore_index", "A10G", 330.0, None, "step"),
    ("giou_as_published", "loop", "L4", 119.2 + 938.1, ("forward",), "forward and loss, synced"),
    ("giou_as_published", "concat", "L4", 118.7 + 25.4, ("forward",), "forward and loss, synced"),
    ("giou_as_published", "padding", "L4", 131.5 + 1.84, ("forward",), "forward and loss, synced"),
    ("giou_as_published", "kernel_arithmetic", "L4", 132.7 + 0.629, ("forward",), "forward and loss, synced"),
]


def articles() -> str:
    """Published times beside the bands, those that miss as well."""
    lines = ["| study | variant | GPU | published | estimated | inside | what |", "|---|---|---|---|---|---|---|"]
    for study in dict.fromkeys(row[0] for row in ARTICLES):
        with tempfile.TemporaryDirectory() as folder:
            wanted = [row[1] for row in ARTICLES if row[0] == study]
            planned = named_study(study, Path(folder))
            planned = replace(planned, variants=tuple(v for v in planned.variants if v.name in wanted))
            followed = {one.name: one.prediction for one in follow(planned, Path(folder))}
        for _, variant, name, ms, phases, what in (row for row in ARTICLES if row[0] == study):
            prediction = followed[variant]
            assert prediction is not None, variant
            calls = [one for one in prediction["operator_calls"] if phases is None or one["phase"] in phases]
            estimate = estimate_prediction({**prediction, "operator_calls": calls}, gpu_of(name))
            band = estimate.step_ms
            shown = "–" if band is None else f"{band[0]:.4g} to {band[1]:.4g} ms"
            inside = "–" if band is None else "yes" if band[0] <= ms <= band[1] else "no"
            lines.append(f"| {study} | {variant} | {name} | {ms:.4g} ms | {shown} | {inside} | {what} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--steps", type=Path)
    parser.add_argument("--traces", type=Path, nargs="+", default=[])
    parser.add_argument("--articles", action="store_true")
    options = parser.parse_args()
    if options.kernels:
        kernels = read_kernels(options.kernels)
        print(f"{table(list(of_kernels(kernels)))}\n\nSums of them:\n\n{table(list(of_sums(kernels)))}\n")
    if options.steps:
        steps = list(of_steps(options.steps))
        print(f"Whole steps of transformers, all held out:\n\n{table(steps)}\n")
        inside = sum(low <= ms <= high for *_, ms, low, high in steps)
        print(f"{inside} of {len(steps)} steps lie within their band.")
    if options.traces:
        rows = [row for path in options.traces for row in of_trace(path)]
        print(f"Classes of operators of recorded traces:\n\n{table(rows)}\n")
    if options.articles:
        print(f"Articles:\n\n{articles()}")
