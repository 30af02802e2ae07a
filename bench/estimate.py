"""How far estimates are from published measurements of real GPUs.

    python bench/estimate.py --kernels KERNELS.csv --steps FOLDER

KERNELS.csv has the columns gpu, op, dims, ms; FOLDER is `scripts/asplos/label` of sitar-lab/NeuSight (MIT licence):
the operators of whole transformer steps in float32 and their time. The constants of steptrace.estimate.rules come from
kernels of V100, P100, T4 and A100-40. All whole steps are held out; of the other GPUs no kernel was seen either.
"""

import argparse
import ast
import csv
import json
import random
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from steptrace.documents.operators import OperatorCalls, TensorSpec
from steptrace.estimate import FollowedStep, Gpu, estimate_step, gpu_named
from steptrace.estimate.flop import flop
from steptrace.estimate.step import moved_bytes, work_of

P100 = Gpu(name="P100", fp32_tflops=9.52, half_tflops=19.05, bandwidth_gbs=732, memory_gb=16, pcie_gbs=16)
FOLDERS = {
    "NVIDIA_H100_80GB_HBM3": "H100", "NVIDIA_A100_80GB_PCIe": "A100-80", "NVIDIA_A100-PCIE-40GB": "A100-40",
    "NVIDIA_L4": "L4", "Tesla_T4": "T4", "Tesla_V100-PCIE-32GB": "V100", "Tesla_P100-PCIE-16GB": "P100",
}  # fmt: skip
#: GPUs whose kernels gave constants.
CALIBRATION = frozenset(["V100", "P100", "T4", "A100-40"])
#: Measuring itself takes 0.03 to 0.06 ms, which are too large a part of shorter ones.
SHORTEST_MS = 0.2
#: Sums that are drawn of each GPU's kernels, and kernels in one.
SUMS, KERNELS_IN_SUM = 200, 20
_LAYER = re.compile(r"\.(?:h|layer|layers|block)\.0\b")
_NO_WORK = frozenset(
    ["view", "size", "getitem", "getattr", "permute", "transpose", "split", "dim", "unsqueeze", "expand", "finfo"]
)


def _gpu(name: str) -> Gpu:
    return P100 if name == "P100" else gpu_named(name)


def call(name: str, inputs: list[tuple[int, ...]], output: tuple[int, ...], calls: int = 1) -> OperatorCalls:
    """An operator on dense float32 tensors."""
    return OperatorCalls(
        name=f"aten.{name}.default",
        inputs=tuple(map(_dense, inputs)),
        outputs=(_dense(output),),
        is_view=False,
        flop=flop(name, inputs, output),
        calls=calls,
        phase="forward",
        file=None,
        line=None,
    )


def _dense(shape: tuple[int, ...]) -> TensorSpec:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return TensorSpec(shape=shape, strides=tuple(reversed(strides)), dtype="float32")


def kernel(op: str, dims: dict[str, int]) -> OperatorCalls:
    """A measured kernel as an operator."""
    if op in ("linear", "bmm"):
        b, m, n, k = (dims[name] for name in "BMNK")
        return (
            call("mm", [(b * m, k), (k, n)], (b * m, n))
            if op == "linear"
            else call("bmm", [(b, m, k), (b, k, n)], (b, m, n))
        )
    if op == "conv":
        size = (dims["Input_Size"] + 2 * dims["Padding"] - dims["Kernel_Size"]) // dims["Stride"] + 1
        images, channels = (dims["B"], dims["Input_Channel"]), dims["Output_Channel"]
        weight = (channels, dims["Input_Channel"], dims["Kernel_Size"], dims["Kernel_Size"])
        shape = (*images, dims["Input_Size"], dims["Input_Size"])
        return call("convolution", [shape, weight], (dims["B"], channels, size, size))
    shape = (dims["B"], dims["H"])
    name = {"softmax": "_softmax", "ln": "native_layer_norm"}.get(op, op)
    return call(name, [shape] * (2 if op in ("add", "mul") else 1), shape)


def read_kernels(path: Path) -> list[tuple[str, OperatorCalls, float]]:
    """GPU, operator and ms measured of each kernel that is long enough."""
    kernels = []
    with path.open() as file:
        for row in csv.DictReader(file):
            dims = {name: int(value) for name, value in (pair.split("=") for pair in row["dims"].split())}
            if float(row["ms"]) >= SHORTEST_MS:
                kernels.append((row["gpu"], kernel(row["op"], dims), float(row["ms"])))
    return kernels


def of_kernels(kernels: list[tuple[str, OperatorCalls, float]]) -> Iterator[tuple[str, str, float, float, float]]:
    """GPU, class, ms measured, and the lowest and highest ms estimated, of each kernel."""
    for gpu, operator, ms in kernels:
        work = work_of(operator, _gpu(gpu))
        assert work is not None
        yield gpu, work.rule.name, ms, 1e3 * work.time[0], 1e3 * work.time[1]


def of_sums(kernels: list[tuple[str, OperatorCalls, float]]) -> Iterator[tuple[str, str, float, float, float]]:
    """The same of sums of kernels of one GPU, drawn at random: how well the band of a step holds."""
    chosen = random.Random(0)
    for gpu in sorted({gpu for gpu, _, _ in kernels}):
        of_gpu = [(operator, ms) for name, operator, ms in kernels if name == gpu]
        for _ in range(SUMS):
            drawn = chosen.sample(of_gpu, min(KERNELS_IN_SUM, len(of_gpu)))
            estimate = estimate_step(FollowedStep([operator for operator, _ in drawn]), _gpu(gpu))
            assert estimate.gpu_ms is not None
            yield gpu, f"sum of {len(drawn)}", sum(ms for _, ms in drawn), *estimate.gpu_ms


def shares(kernels: list[tuple[str, OperatorCalls, float]]) -> str:
    """Shares of the data sheet that kernels reach: what the constants of steptrace.estimate.rules are.

    Of cards limited by their power those of arithmetic are left out.
    """
    groups: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, operator, ms in kernels:
        gpu, work = _gpu(name), work_of(operator, _gpu(name))
        assert work is not None
        by_flop = operator.flop / (gpu.flops("float32") or 1)
        by_bytes = moved_bytes(operator) / gpu.bandwidth
        what = "arithmetic" if by_flop > by_bytes else "bandwidth"
        if what == "bandwidth" or not gpu.power_limited:
            seconds = ms / 1e3 - sum(work.rule.floor) / 2
            groups[work.rule.name, what][name].append(max(by_flop, by_bytes) / seconds)
    head = "| class | share of | kernels | 90 % of them | 80 % of them | half of them | medians of GPUs |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for (rule, what), by_gpu in sorted(groups.items()):
        every = sorted(share for found in by_gpu.values() for share in found)
        ends = [f"{every[int(part * len(every))]:.2f}" for part in (0.05, 0.95, 0.1, 0.9, 0.25, 0.75)]
        medians = sorted(statistics.median(found) for found in by_gpu.values())
        lines.append(
            f"| {rule} | {what} | {len(every)} | {ends[0]} to {ends[1]} | {ends[2]} to {ends[3]} | "
            f"{ends[4]} to {ends[5]} | {medians[0]:.2f} to {medians[-1]:.2f} |"
        )
    return "\n".join(lines)


def of_steps(folder: Path) -> Iterator[tuple[str, str, float, float, float]]:
    """The same of whole steps: the operators of one layer stand for all layers."""
    for path in sorted(folder.glob("*/*.csv")):
        name = re.fullmatch(r"(.+)-(train|inf)-(\d+)-(\d+)", path.stem)
        label = path.with_suffix(".json")
        if path.parent.name not in FOLDERS or name is None or not label.is_file() or "switch" in name[1]:
            continue
        measured = json.loads(label.read_text())
        calls = list(_operators(path, measured["num_layer"], train=name[2] == "train"))
        gpu = _gpu(FOLDERS[path.parent.name])
        estimate = estimate_step(FollowedStep(calls), gpu)
        latency = "e2e_latency" if name[2] == "train" else "fw_latency"
        if estimate.gpu_ms is not None and measured.get(latency):
            yield gpu.name, name[2], float(measured[latency]), *estimate.gpu_ms


def _operators(path: Path, layers: int, *, train: bool) -> Iterator[OperatorCalls]:
    with path.open() as file:
        for row in csv.DictReader(file):
            output = ast.literal_eval(row["output_shape"]) if row["output_shape"] else ()
            inputs = [tuple(shape) for shape in ast.literal_eval(row["input_shapes"]) if shape != [1]]
            if row["op"] in ("placeholder", "get_attr", "output") or len(output) < 2 or not inputs:
                continue
            words = re.findall(r"(?:function|method|class) '?(?:builtins\.)?(\w+)", row["target"])
            name = words[0] if words else row["target"].rpartition(".")[2]
            if name in _NO_WORK or (name in ("to", "type", "contiguous") and row["dtype"] != "torch.float32"):
                continue
            if "dropout" in row["target"] and not train:  # passes its input on
                continue
            calls = layers if _LAYER.search(row["meta"]) or _LAYER.search(row["target"]) else 1
            yield from _with_backward(name, row["op"], inputs, output, calls, train=train)


def _with_backward(
    name: str, kind: str, inputs: list[tuple[int, ...]], output: tuple[int, ...], calls: int, *, train: bool
) -> Iterator[OperatorCalls]:
    rows = output[-2] if len(output) < 3 else _product(output[:-1])
    if name == "matmul" and len(output) > 2:
        batch, (m, k), n = _product(output[:-2]), inputs[0][-2:], output[-1]
        made = call("bmm", [(batch, m, k), (batch, k, n)], (batch, m, n), calls)
        back = [call("bmm", [(batch, m, n), (batch, n, k)], (batch, m, k), calls),
                call("bmm", [(batch, k, m), (batch, m, n)], (batch, k, n), calls)]  # fmt: skip
    elif name in ("addmm", "matmul") or (kind == "call_module" and inputs[0][-1] != output[-1]) or name in _LINEAR:
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--steps", type=Path)
    options = parser.parse_args()
    if options.kernels:
        kernels = read_kernels(options.kernels)
        print(f"Kernels of {SHORTEST_MS} ms and more:\n\n{shares(kernels)}\n")
        print(f"{table(list(of_kernels(kernels)))}\n\nSums of them:\n\n{table(list(of_sums(kernels)))}\n")
    if options.steps:
        steps = list(of_steps(options.steps))
        print(f"Whole steps of transformers, all held out:\n\n{table(steps)}\n")
        inside = sum(low <= ms <= high for *_, ms, low, high in steps)
        print(f"{inside} of {len(steps)} steps lie within their band.")
