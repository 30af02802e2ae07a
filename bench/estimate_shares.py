"""The shares of the data sheet that kernels reach: the constants of src/steptrace/estimate/shares.toml.

    python bench/estimate_shares.py KERNELS.csv [--write]

KERNELS.csv has the columns gpu, op, dims, ms, kernel: published kernels of V100, P100, T4 and A100-40 in float32 (the
data set of sitar-lab/NeuSight, MIT licence). A band is meant for a GPU that was not seen. So each GPU is left out in
turn: how far its kernels, or sums of twenty of them, lie from the middle of the other GPUs gives the width of the band,
around the middle of all. Nothing else goes into it.
"""

import argparse
import csv
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.estimate import rules
from steptrace.estimate.gpus import Gpu, gpu_named
from steptrace.estimate.recorded import flop
from steptrace.estimate.work import moved_bytes, work_of

P100 = Gpu(name="P100", fp32_tflops=9.52, half_tflops=19.05, bandwidth_gbs=732, memory_gb=16, pcie_gbs=16)
#: Measuring itself takes 0.03 to 0.06 ms, which are too large a part of shorter ones.
SHORTEST_MS = 0.2
#: Kernels in a sum, sums drawn of each GPU.
SUM, DRAWN = 20, 1000
#: A class with fewer kernels than this, or of one GPU, gets no band from them.
FEWEST = 20
#: No GPU that can be named runs products by kernels of that generation, which are all that the library has for a P100.
OLD = "maxwell"
#: Of single kernels; convolutions vary most.
PART, PART_OF_CONVOLUTIONS = 0.9, 0.8
SHIPPED = Path(__file__).parents[1] / "src/steptrace/estimate/shares.toml"
HEAD = """\
# Shares of the data sheet that kernels of a class reach, lowest and highest: of single kernels, and of sums of twenty.
# Written by bench/estimate_shares.py from published kernels; see docs/estimates.md.
"""


class Kernel(NamedTuple):
    """A measured kernel."""

    gpu: str
    operator: OperatorCalls
    ms: float
    name: str


def gpu_of(name: str) -> Gpu:
    """The data sheet of a GPU of the data set."""
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


def operator(op: str, dims: Mapping[str, int]) -> OperatorCalls:
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


def read_kernels(path: Path) -> list[Kernel]:
    """The kernels that are long enough."""
    kernels = []
    with path.open() as file:
        for row in csv.DictReader(file):
            dims = {name: int(value) for name, value in (pair.split("=") for pair in row["dims"].split())}
            if float(row["ms"]) >= SHORTEST_MS:
                kernels.append(Kernel(row["gpu"], operator(row["op"], dims), float(row["ms"]), row["kernel"]))
    return kernels


#: Seconds of a kernel at the data sheet's figure, and measured.
Times = tuple[float, float]


def by_class(kernels: Sequence[Kernel]) -> dict[tuple[str, str], dict[str, list[Times]]]:
    """Times of the kernels of each class and GPU that constants come from, by what bounds them.

    Arithmetic of cards limited by their power is left out. Products of few FLOP per byte are one class, batched or not;
    those of many that run the kernels of an old generation are left out, too.
    """
    classes: dict[tuple[str, str], dict[str, list[Times]]] = defaultdict(lambda: defaultdict(list))
    for one in kernels:
        gpu = gpu_of(one.gpu)
        work = work_of(one.operator, gpu)
        assert work is not None
        by_flop = one.operator.flop / (gpu.flops("float32") or 1)
        by_bytes = moved_bytes(one.operator) / gpu.bandwidth
        what = "arithmetic" if by_flop > by_bytes else "memory"
        products = ("matrix product", "batched matrix product")
        is_product = work.rule.name in products
        if what == "arithmetic" and (gpu.power_limited or (is_product and OLD in one.name)):
            continue
        names = products if is_product and what == "memory" else (work.rule.name,)
        for name in names:
            seconds = one.ms / 1e3 - sum(work.rule.floor) / 2
            classes[name, what][one.gpu].append((max(by_flop, by_bytes), seconds))
    return classes


def bands(of_gpus: Mapping[str, Sequence[Times]], *, part: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """The shares between which `part` of the kernels of a GPU not seen lie, and nine of ten sums of them."""
    return _band(of_gpus, 1, part), _band(of_gpus, SUM, 0.9)


def _band(of_gpus: Mapping[str, Sequence[Times]], count: int, part: float) -> tuple[float, float]:
    chosen = random.Random(0)
    logs = {}
    for gpu, times in sorted(of_gpus.items()):
        drawn = [chosen.choices(times, k=count) for _ in range(DRAWN)]
        logs[gpu] = [math.log(sum(ideal for ideal, _ in one) / sum(took for _, took in one)) for one in drawn]
    middles = {gpu: statistics.median(shares) for gpu, shares in logs.items()}
    apart = sorted(
        share - statistics.mean(middle for other, middle in middles.items() if other != gpu)
        for gpu, shares in logs.items()
        for share in shares
    )
    middle = statistics.mean(middles.values())
    ends = (apart[int(len(apart) * (1 - part) / 2)], apart[int(len(apart) * (1 + part) / 2)])
    return round(math.exp(middle + ends[0]), 2), round(math.exp(middle + ends[1]), 2)


def derived(
    kernels: Sequence[Kernel],
) -> Iterator[tuple[str, str, dict[str, int], tuple[float, float], tuple[float, float]]]:
    """Class, what bounds it, kernels by GPU, and both bands."""
    for (name, what), of_gpus in sorted(by_class(kernels).items()):
        counts = {gpu: len(times) for gpu, times in sorted(of_gpus.items())}
        if sum(counts.values()) >= FEWEST and len(counts) > 1:
            part = PART_OF_CONVOLUTIONS if name.startswith("convolution") else PART
            yield name, what, counts, *bands(of_gpus, part=part)


def toml(kernels: Sequence[Kernel]) -> str:
    """The content of shares.toml."""
    lines = [HEAD]
    for name, what, counts, kernel, typical in derived(kernels):
        listed = ", ".join(f"{count} of {gpu}" for gpu, count in counts.items())
        lines.append(f'["{name}".{what}] # {listed}\nkernel = {list(kernel)}\ntypical = {list(typical)}\n')
    return "\n".join(lines)


def table(kernels: Sequence[Kernel]) -> str:
    """The shares of all rules, with where they come from; those that are judged in one line below."""
    counts = {(name, what): of_gpus for name, what, of_gpus, *_ in derived(kernels)}
    lines = ["| class of operator | share of | one kernel | sum of 20 | from kernels of |", "|---|---|---|---|---|"]
    judged: list[str] = []
    for rule in vars(rules).values():
        if not isinstance(rule, rules.Rule) or rule.not_covered or rule is rules.HOST_COPY:
            continue
        for what, shares in (("arithmetic", rule.arithmetic), ("memory", rule.memory)):
            one, many = (f"{low:g} to {high:g}" for low, high in (shares.kernel, shares.typical))
            if (of_gpus := counts.get((rule.name, what))) is None:
                judged.append(f"{rule.name}, {what}: {many}")
            else:
                source = ", ".join(f"{n} {gpu}" for gpu, n in of_gpus.items())
                lines.append(f"| {rule.name} | {what} | {one} | {many} | {source} |")
    return "\n".join([*lines, "", "Judged: " + "; ".join(judged)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kernels", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    measured = read_kernels(options.kernels)
    if options.write:
        SHIPPED.write_text(toml(measured), encoding="utf-8")
    print(table(measured))
