"""How far estimates are from published measurements of GPUs: the tables of docs/evidence-estimates.md, in one command.

    python bench/estimate.py PUBLISHED [--timm FOLDER] [--neusight FOLDER] [--h100 FOLDER] [--steps FOLDER]
        [--networks FOLDER] [--language FOLDER] [--book FOLDER] [--vision FOLDER] [--fine-tuning FOLDER]
        [--throughputs FOLDER] [--model-tables FOLDER] [--kernels]
        [--studies STUDY...] [--traces TRACE...] [--articles]

PUBLISHED: see estimate_constants.py, which derives the constants from it. `--timm`: models that estimate_timm.py has
followed; those that are drawn to evaluate gave no constant. `--neusight` is `scripts/asplos/label` of
sitar-lab/NeuSight (MIT licence): the operators of whole transformer steps in float32 and their time, none of which gave
a constant. `--h100` holds the predictions of gpu_steps.py's cases (written there if missing), whose steps an H100 took
(reports/reference/h100/steps.json). `--steps`, `--networks`, `--language`, `--book`, `--vision`,
`--fine-tuning`, `--throughputs`, `--model-tables`: programs that published_steps.py, published_networks.py,
published_language_models.py, published_book_steps.py, published_vision_steps.py, published_fine_tuning.py,
published_throughputs.py and published_model_tables.py have followed.
Kernels are compared with
constants that are derived without their GPU. STUDY: its variants that an H100 trained (reports/reference/h100). TRACE:
real traces with the sizes of inputs. `--articles` follows the studies that articles have published times of.
"""

import argparse
import ast
import csv
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

import estimate_constants as derive
import estimate_timm
import followed_programs
import published_book_steps
import published_fine_tuning
import published_language_models
import published_model_tables
import published_networks
import published_steps
import published_throughputs
import published_vision_steps
from steptrace.analysis.roofline import calls_with_sizes
from steptrace.commands.follow_study import follow_study, named_study
from steptrace.documents.estimate import OperatorCalls
from steptrace.documents.prediction import PredictedStep
from steptrace.estimate.collectives import expected_seconds
from steptrace.estimate.constants import shipped
from steptrace.estimate.differences import difference
from steptrace.estimate.drawn import FollowedStep, StepDraws
from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import Gpu, gpu_named, gpu_of_driver
from steptrace.estimate.step import draws_of, estimate_step, followed_step
from steptrace.estimate.times import band, ideal_seconds, kernel_seconds
from steptrace.estimate.traced_operator import recorded_call
from steptrace.estimate.work import kernels_of
from steptrace.trace.link import read_trace

ROOT: Final = Path(__file__).parents[1]
#: An H100's own measurements: steps, and studies.
H100: Final = ROOT / "reports/reference/h100"
FOLDERS = {
    "NVIDIA_H100_80GB_HBM3": "H100", "NVIDIA_A100_80GB_PCIe": "A100-80", "NVIDIA_A100-PCIE-40GB": "A100-40",
    "NVIDIA_L4": "L4", "Tesla_T4": "T4", "Tesla_V100-PCIE-32GB": "V100", "Tesla_P100-PCIE-16GB": "P100",
}  # fmt: skip
#: Kernels that take less are mostly launch and measuring.
SHORTEST_S: Final = derive.LONG_S
#: From this share of a step's GPU work on, it counts as a step of classes that were measured on its GPU.
MOSTLY_MEASURED: Final = 0.5
#: How far a ratio of two layouts may be off, and the logarithm of a ratio that says which layout is quicker.
NEAR: Final = 0.15
CLEAR: Final = 0.01
_LAYER = re.compile(r"\.(?:h|layer|layers|block)\.0\b")
_NO_WORK = frozenset(
    ["view", "size", "getitem", "getattr", "permute", "transpose", "split", "dim", "unsqueeze", "expand", "finfo"]
)
#: These launch nothing where the tensor has that type, or is contiguous, already.
_CASTS = frozenset(["to", "type", "type_as", "float", "long", "bool"])
_DENSE = frozenset(["contiguous", "reshape"])


class Held(NamedTuple):
    """Something that was measured, beside its band: all in ms. `place` of the truth in the band, 0 to 1 inside."""

    what: str
    ms: float
    low: float
    high: float
    middle: float

    @property
    def inside(self) -> bool:
        """Whether the band holds it."""
        return self.low <= self.ms <= self.high

    @property
    def place(self) -> float:
        """Where in the band it lies, in logarithms: 0 at the low end, 1 at the high one."""
        return math.log(self.ms / self.low) / math.log(self.high / self.low)


def held(what: str, ms: float, draws: Any) -> Held:
    """A measurement beside the draws in seconds."""
    low, high = band(1e3 * draws)
    return Held(what, ms, low, high, 1e3 * float(np.median(draws)))


def line(name: str, rows: Sequence[Held]) -> str:
    """A row of the table: how many lie inside, how wide bands are, how far middles are off."""
    if not rows:
        return f"| {name} | 0 | - | - | - | - |"
    inside = sum(one.inside for one in rows)
    width = statistics.median(one.high / one.low for one in rows)
    error = statistics.mean(abs(one.middle / one.ms - 1) for one in rows)
    place = statistics.median(one.place for one in rows)
    share = 100 * inside / len(rows)
    return f"| {name} | {len(rows)} | {inside} ({share:.0f} %) | {width:.2f} | {error:.2f} | {place:.2f} |"


HEAD: Final = (
    "| measured | count | inside the band | median width | mean error | median place in the band |\n"
    "|---|---|---|---|---|---|"
)


def _cached(folder: Path, row: estimate_timm.Row) -> StepDraws | None:
    prediction = estimate_timm.followed(folder, row.program)
    return None if prediction is None else draws_of(followed_step(prediction), gpu_named(row.gpu))


def of_timm(published: Path, folder: Path) -> Iterator[str]:
    """Steps of models that gave no constant, and the ratio of both layouts of a model."""
    rows = estimate_timm.read_rows(published / "published/timm")
    draw = estimate_timm.drawn(rows, estimate_timm.known_models([row.program.model for row in rows]))
    misses: list[str] = []
    for kind, evaluated in draw.evaluation.items():
        found = [
            held(f"{row.program.model} {row.program.layout} {row.gpu}", row.ms, drawn.timeline.step)
            for row in evaluated
            if (drawn := _cached(folder, row)) is not None
        ]
        yield line(f"timm, {kind}, AMP", found)
        misses += [
            f"{kind}: {one.what}: {one.ms:.4g} ms, estimated {one.low:.4g} to {one.high:.4g}"
            for one in found
            if not one.inside
        ]
    for name, compared in (("models", draw.ratios), ("more models, by another seed", draw.fresh)):
        yield of_layouts(name, list(_ratios(folder, compared)), misses)
    beyond = list(_beyond_the_data_sheet(rows, folder))
    yield f"| steps that the data sheet says are impossible | {len(rows)} | {len(beyond)} | - | - | - |"
    for miss in [*misses, *(f"faster than the data sheet: {one}" for one in beyond)]:
        print(f"  {miss}", file=sys.stderr)


def _ratios(
    folder: Path, compared: Sequence[tuple[estimate_timm.Row, estimate_timm.Row]]
) -> Iterator[tuple[str, float, float]]:
    """Model, and NCHW's time over NHWC's: published, and the middle of the draws."""
    for pair in compared:
        both = [_cached(folder, row) for row in pair]
        if both[0] is not None and both[1] is not None:
            ratio = float(np.median(both[0].timeline.step / both[1].timeline.step))
            yield pair[0].program.model, pair[0].ms / pair[1].ms, ratio


def of_layouts(what: str, ratios: Sequence[tuple[str, float, float]], misses: list[str]) -> str:
    """A row of the table: how often the quicker layout is the right one. Effects under 1 % are counted apart as well.

    Args:
        what: which models.
        ratios: see `_ratios`.
        misses: models with a wrong sign or an effect that is off by more than 15 % are added here.
    """
    right = [(truth > 1) == (ratio > 1) for _, truth, ratio in ratios]
    near = [abs(ratio / truth - 1) <= NEAR for _, truth, ratio in ratios]
    clear = [sign for sign, (_, truth, _) in zip(right, ratios, strict=True) if abs(math.log(truth)) > CLEAR]
    misses += [
        f"NCHW over NHWC: {name}: {truth:.3f}, estimated {ratio:.3f}"
        for (name, truth, ratio), sign, is_near in zip(ratios, right, near, strict=True)
        if not (sign and is_near)
    ]
    told = f"{sum(right)} signs right ({sum(clear)} of {len(clear)} over 1 %), {sum(near)} within 15 %"
    return f"| timm, NCHW over NHWC, {what} | {len(ratios)} | {told} | - | - | - |"


def _beyond_the_data_sheet(rows: Sequence[estimate_timm.Row], folder: Path) -> Iterator[str]:
    """Published steps that are shorter than their kernels at the full figures of the data sheet."""
    for row in rows:
        prediction = estimate_timm.followed(folder, row.program)
        if prediction is not None:
            ideal = 1e3 * ideal_step_seconds(followed_step(prediction), gpu_named(row.gpu))
            if ideal > row.ms:
                yield f"{row.program.model} {row.program.mode} {row.gpu}: {row.ms:.4g} ms, at least {ideal:.4g}"


def ideal_step_seconds(followed: FollowedStep, gpu: Gpu) -> float:
    """Seconds of a step's kernels, each at the data sheet's figures, without what lies in its L2 cache."""
    cache = driver_facts(gpu).l2_bytes
    return sum(
        call.calls * max(ideal_seconds(replace(kernel, bytes=max(0.0, kernel.bytes - cache)), gpu))
        for call in followed.operators
        for kernel in kernels_of(call, tf32=followed.tf32)
    )


def of_kernels(published: Path, timm: Path | None) -> Iterator[str]:
    """16-bit kernels that are not short and do not lie in the L2 cache, held to constants derived without their GPU."""
    table = published / "published"
    of_attention = derive.attention_kernels(table / "attention.parquet")
    lost = derive.losses_of_gpus(of_attention)
    losses = derive.attention_losses(lost)
    fits, sources = derive.published_fits(published, of_attention, losses)
    steps = {} if timm is None else derive.timm_steps(published, timm, losses)
    kernels = [*derive.gemm_kernels(table / "gemm.parquet"), *of_attention]
    for gpu in ("H100", "H200", "A100-80", "L40S", "B200", "GB200", "RTX-PRO-6000"):
        losses = derive.attention_losses(lost, without=gpu)
        alike = [one for one in of_attention if one.gpu.name != gpu and one.gpu.family == gpu_named(gpu).family]
        refitted = derive.fits_of(alike, losses)["attention", "16"]
        without = {**fits, ("attention", "16"): {**fits["attention", "16"], **refitted}}
        known, _ = derive.known_of(without, steps, sources, error=0.0)
        constants = derive.parsed(derive.constants_of(known, without=gpu), losses, shipped_general())
        for kind in ("product", "attention"):
            some = [one for one in kernels if one.gpu.name == gpu and one.kernel.kind == kind]
            some = [one for one in some if one.seconds >= SHORTEST_S][:1500]
            draws = kernel_seconds([one.kernel for one in some], some[0].gpu, constants, alone=True)
            if kind == "attention":
                # Measured together with a kernel that writes a cache, which PyTorch's attention does not have. How
                # long that takes is known from this GPU's own table.
                cached, blocks = (np.array([getattr(one, name) for one in some]) for name in ("cached_s", "blocks_s"))
                draws = draws + derive.cache_seconds(cached, blocks, fits[kind, "16"][gpu].writes)[:, None]
            found = [held(kind, 1e3 * one.seconds, draw) for one, draw in zip(some, draws, strict=True)]
            yield line(f"{kind}, 16 bit, {gpu} left out", found)


def shipped_general() -> dict[str, float]:
    """What is not of a class, as it is shipped."""
    constants = shipped()
    return {
        name: getattr(constants, name)
        for name in (
            "host_us",
            "host_spread",
            "common_spread",
            "common_spread_products",
            "by_multiprocessor",
            "data",
            "data_spread",
        )
    }


def of_neusight(folder: Path) -> Iterator[str]:
    """Whole steps of transformers in float32."""
    found = defaultdict(list)
    for gpu, what, ms, drawn in of_steps(folder):
        found[gpu].append(held(what, ms, drawn.timeline.step))
    for gpu, rows in sorted(found.items()):
        yield line(f"NeuSight's steps, float32, {gpu}", rows)
    yield line("NeuSight's steps, all", list(chain.from_iterable(found.values())))


def of_h100(folder: Path) -> Iterator[str]:
    """Our own steps on an H100."""
    record = json.loads((H100 / "steps.json").read_text())
    found = []
    of_published_kernels = []
    for case in record["cases"]:
        drawn = draws_of(followed_step(_case(folder, case["name"])), gpu_named("H100"))
        found.append(held(case["name"], case["step_ms"], drawn.timeline.step))
        if measured_share(drawn, "H100") >= MOSTLY_MEASURED:
            of_published_kernels.append(found[-1])
    for one in found:
        mark = "" if one.inside else " OUTSIDE"
        print(f"  {one.what}: {one.ms:.1f} ms, estimated {one.low:.1f} to {one.high:.1f}{mark}", file=sys.stderr)
    yield line("our own steps, H100", found)
    yield line("of these, mostly of classes whose kernels are published for an H100", of_published_kernels)


def measured_share(drawn: StepDraws, gpu: str) -> float:
    """The share of a step's GPU work in classes and formats that were measured on a GPU itself."""
    middles = np.median(drawn.seconds, axis=1)
    works = [(item.kernel, float(middle * item.calls)) for item, middle in zip(drawn.launched, middles, strict=True)]
    measured = sum(work for kernel, work in works if (kernel.kind, kernel.format, gpu) in shipped().efficiencies)
    return measured / sum(work for _, work in works)


def of_published_steps(folder: Path) -> Iterator[str]:
    """Steps that others have published, of programs that were followed."""
    return _beside_estimates(
        folder,
        published_steps.STEPS,
        kind=lambda step: f"published steps of transformers, {step.gpu}",
        name=lambda step: " ".join(map(str, step.program)),
    )


def of_throughputs(folder: Path) -> Iterator[str]:
    """Inference of vision models, by project and GPU."""
    return _beside_estimates(
        folder, published_throughputs.STEPS, kind=lambda step: step.kind, name=lambda step: step.program.model
    )


def _beside_estimates(
    folder: Path, steps: Iterable[Any], *, kind: Callable[[Any], str], name: Callable[[Any], str]
) -> Iterator[str]:
    """The rows of published steps on one GPU whose programs were followed, by the kind of each step."""
    found = defaultdict(list)
    for step in steps:
        prediction = followed_programs.followed(folder, step.program)
        if prediction is not None:
            drawn = draws_of(followed_step(prediction), gpu_named(step.gpu))
            found[kind(step)].append(held(f"{step.gpu} {name(step)}", step.ms, drawn.timeline.step))
    return _lines(found)


def of_networks(folder: Path) -> Iterator[str]:
    """Networks on one GPU and on eight, as others publish them."""
    found = defaultdict(list)
    for step in published_networks.STEPS:
        prediction = followed_programs.followed(folder, step.program)
        if prediction is not None:
            of_step = replace(followed_step(prediction), devices=step.devices, tf32=step.program.precision == "fp32")
            kind = f"{'training' if step.program.part == 'train' else 'inference'}, GPUs: {step.devices}"
            found[f"published networks, {kind}"].append(_beside(step, of_step, published_networks.sheet(step.gpu)))
    return _lines(found)


def of_language_models(folder: Path) -> Iterator[str]:
    """Steps of MPT models on eight GPUs, and of GPT-2 on one."""
    found = defaultdict(list)
    for step in published_language_models.STEPS:
        prediction = followed_programs.followed(folder, step.program)
        if prediction is not None:
            of_step = replace(followed_step(prediction), devices=step.devices)
            kind = f"MPT, {step.devices} {step.gpu}" if step.program.is_sharded else "GPT-2, A100"
            found[kind].append(_beside(step, of_step, gpu_named(step.gpu)))
    return _lines(found)


def of_book_steps(folder: Path) -> Iterator[str]:
    """Steps of a book's GPT-2 on an A100, as on one of 80 GB: the book does not say which."""
    found = []
    for step in published_book_steps.STEPS:
        prediction = followed_programs.followed(folder, step.program)
        if prediction is not None:
            of_step = followed_step(prediction)
            peak = (of_step.peak_memory_bytes or 0) / 2**30
            told = f"{step.reserved_gib:.2f} GiB reserved, peak estimated {peak:.2f} GiB"
            print(f"  {step.program.change}: {told}", file=sys.stderr)
            drawn = draws_of(of_step, gpu_named("A100-80"))
            found.append(held(f"book, {step.program.change}", step.ms, drawn.timeline.step))
    return _lines({"GPT-2 of a book, A100": found})


def of_projects(
    folder: Path,
    steps: Iterable[
        published_vision_steps.Published | published_fine_tuning.Published | published_model_tables.Published
    ],
) -> Iterator[str]:
    """Steps of programs of several projects, and their memory."""
    found = defaultdict(list)
    memory = defaultdict(list)
    for step in steps:
        prediction = followed_programs.followed(folder, step.program)
        if prediction is None:
            continue
        of_step = replace(followed_step(prediction), devices=step.devices)
        if isinstance(step, published_model_tables.Published) and step.tf32:
            of_step = replace(of_step, tf32=True)
        if step.ms is not None:
            what = f"{step.gpu} {' '.join(map(str, step.program))}"
            drawn = draws_of(of_step, gpu_named(step.gpu))
            found[step.kind].append(held(what, step.ms, drawn.timeline.step))
        if step.memory_gib is not None:
            peak = (of_step.peak_memory_bytes or 0) / 2**30
            memory[step.kind].append(peak / step.memory_gib)
            print(f"  {step.program}: {step.memory_gib:.2f} GiB, peak estimated {peak:.2f} GiB", file=sys.stderr)
    yield from _lines(found)
    for kind, ratios in memory.items():
        told = (
            f"estimated over published: {min(ratios):.2f} to {max(ratios):.2f}, median {statistics.median(ratios):.2f}"
        )
        yield f"| memory of {kind} | {len(ratios)} | {told} | - | - | - |"


def _beside(
    step: published_networks.Published | published_language_models.Published, of_step: FollowedStep, gpu: Gpu
) -> Held:
    """A published step beside its estimate; what is said of communication and memory is printed."""
    what = f"{step.gpu} x {step.devices} {' '.join(map(str, step.program))}"
    drawn = draws_of(of_step, gpu)
    if step.devices > 1:
        exposed, sent = (band(1e3 * one) for one in (drawn.timeline.exposed, drawn.timeline.communication))
        told = f"communication {sent[0]:.3g} to {sent[1]:.3g} ms, exposed {exposed[0]:.3g} to {exposed[1]:.3g}"
        print(f"  {what}: {told}", file=sys.stderr)
    if step.memory_gib is not None:
        peak = (of_step.peak_memory_bytes or 0) / 2**30
        print(f"  {what}: {step.memory_gib:.1f} GiB, peak estimated {peak:.1f} GiB", file=sys.stderr)
    return held(what, step.ms, drawn.timeline.step)


def _lines(found: Mapping[str, Sequence[Held]]) -> Iterator[str]:
    """A row of the table for each kind of steps; each step is printed."""
    for kind, rows in found.items():
        for one in rows:
            mark = "" if one.inside else " OUTSIDE"
            print(f"  {one.what}: {one.ms:.4g} ms, {one.low:.4g} to {one.high:.4g}{mark}", file=sys.stderr)
        yield line(kind, rows)


def _case(folder: Path, name: str) -> PredictedStep:
    """The prediction of a case of gpu_steps.py, followed if it has not been yet."""
    path = folder / f"{name}.json.gz"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        code = (
            "import gpu_steps, gzip, json, sys\n"
            "from steptrace.predict import Prediction, predict_syncs\n"
            "with predict_syncs() as syncs:\n"
            "    step = gpu_steps.Training(gpu_steps.CASES[sys.argv[1]], 'cuda')\n"
            "    step(); syncs.reset(); step()\n"
            "    prediction = Prediction.so_far(syncs).to_json()\n"
            "json.dump(prediction, gzip.open(sys.argv[2], 'wt'))\n"
        )
        command = [sys.executable, "-c", code, name, str(path)]
        subprocess.run(command, check=True, cwd=Path(__file__).parent)
    return estimate_timm.read(path)


def of_studies(studies: Sequence[str]) -> Iterator[str]:
    """Paired differences of a study's variants to its baseline, against what an H100 saved."""
    for study in studies:
        comparison = json.loads((H100 / study / "comparison.json").read_text())
        measured = {v["name"]: v["step_ms"]["median"] for v in comparison["variants"] if v.get("step_ms")}
        with tempfile.TemporaryDirectory() as folder:
            planned = named_study(study, Path(folder))
            planned = replace(planned, variants=tuple(v for v in planned.variants if v.name in measured))
            drawn = {
                one.name: draws_of(followed_step(one.prediction), gpu_named("H100"))
                for one in follow_study(planned, Path(folder))
                if one.prediction is not None
            }
        baseline = comparison["baseline"]
        for name, draws in drawn.items():
            if name == baseline:
                continue
            saved = measured[baseline] - measured[name]
            pair = difference(draws, drawn[baseline], baseline)
            low, high = pair.saved_ms
            inside = "inside" if low <= saved <= high else "outside"
            sign = "right" if (low + high > 0) == (saved > 0) else "wrong"
            said = f"{saved:.3g} ms, estimated {low:.3g} to {high:.3g}: {inside}, sign {sign}"
            yield f"| {study}: {name} saves | 1 | {said} | - | - | - |"


def _sheet(name: str) -> Gpu:
    return derive.P100 if name == "P100" else gpu_named(name)


def call(name: str, inputs: list[tuple[int, ...]], output: tuple[int, ...], calls: int = 1) -> OperatorCalls:
    """An operator on dense float32 tensors, called so often."""
    return replace(derive.operator(name, inputs, output, "float32"), calls=calls)


def of_steps(folder: Path) -> Iterator[tuple[str, str, float, StepDraws]]:
    """GPU, kind, ms measured, and draws of whole steps: the operators of one layer stand for all layers."""
    for path in sorted(folder.glob("*/*.csv")):
        name = re.fullmatch(r"(.+)-(train|inf)-(\d+)-(\d+)", path.stem)
        label = path.with_suffix(".json")
        if path.parent.name not in FOLDERS or name is None or not label.is_file() or "switch" in name[1]:
            continue
        measured = json.loads(label.read_text())
        calls = list(_operators(path, measured["num_layer"], train=name[2] == "train"))
        gpu = _sheet(FOLDERS[path.parent.name])
        latency = "e2e_latency" if name[2] == "train" else "fw_latency"
        if measured.get(latency):
            yield gpu.name, name[2], float(measured[latency]), draws_of(FollowedStep(calls), gpu)


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
                name = "embedding"
                inputs = [output]
            calls = layers if _LAYER.search(row["meta"]) or _LAYER.search(row["target"]) else 1
            yield from _with_backward(name, row["op"], inputs, output, calls, train=train)


def _with_backward(
    name: str, kind: str, inputs: list[tuple[int, ...]], output: tuple[int, ...], calls: int, *, train: bool
) -> Iterator[OperatorCalls]:
    rows = output[-2] if len(output) < 3 else _product(output[:-1])
    if name == "bmm" or (name == "matmul" and len(output) > 2):
        batch = _product(output[:-2])
        m, k = inputs[0][-2:]
        n = output[-1]
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


def of_trace(path: Path) -> Iterator[str]:
    """Sums of the operators of a recorded trace, by class."""
    trace = read_trace(path)
    gpu = gpu_of_driver(trace.meta.device_name(trace.devices[0]))
    if gpu is None:
        return
    classes: dict[tuple[str, bool], list[tuple[OperatorCalls, float]]] = defaultdict(list)
    for row in calls_with_sizes(trace).itertuples(index=False):
        recorded = recorded_call(row.name, row.types, row.sizes, row.strides)
        kernels = () if recorded is None else kernels_of(recorded, tf32=row.tf32)
        if recorded is not None and kernels:
            classes[kernels[0].kind, row.tf32].append((recorded, row.ns / 1e9))
    found = []
    for (kind, tf32), calls in sorted(classes.items()):
        drawn = draws_of(FollowedStep([one for one, _ in calls], tf32=tf32), gpu)
        found.append(held(kind, 1e3 * sum(seconds for _, seconds in calls), drawn.timeline.gpu))
    for one in found:
        mark = "" if one.inside else " OUTSIDE"
        print(f"  {path.name} {one.what}: {one.ms:.3g} ms, {one.low:.3g} to {one.high:.3g}{mark}", file=sys.stderr)
    yield line(f"classes of {path.name.partition('.')[0]} ({gpu.name})", found)


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
            followed = {one.name: one.prediction for one in follow_study(planned, Path(folder))}
        for _, variant, name, ms, phases, what in (row for row in ARTICLES if row[0] == study):
            prediction = followed[variant]
            assert prediction is not None, variant
            step = followed_step(prediction)
            calls = [one for one in step.operators if phases is None or one.phase in phases]
            estimate = estimate_step(replace(step, operators=calls), gpu_named(name))
            band = estimate.step_ms
            shown = "–" if band is None else f"{band[0]:.4g} to {band[1]:.4g} ms"
            inside = "–" if band is None else "yes" if band[0] <= ms <= band[1] else "no"
            lines.append(f"| {study} | {variant} | {name} | {ms:.4g} ms | {shown} | {inside} | {what} |")
    return "\n".join(lines)


def of_collectives(published: Path) -> Iterator[str]:
    """NCCL's times between the sizes that are kept: how far the table's lines are from them."""
    table = derive.pd.read_parquet(published / "published/nccl.parquet")
    table = table[(table.nccl_dtype == "half") & (table.message_size >= 4096)]
    errors = [
        abs(
            expected_seconds(
                derive.OPERATIONS[row.op_name],
                2.0 * row.message_size,
                row.num_gpus,
                gpu_named(derive.AICONFIGURATOR[row.gpu]),
            )[0]
            / (row.latency / 1e3)
            - 1
        )
        for row in table.itertuples()
    ]
    yield f"| NCCL's collectives | {len(errors)} | - | - | {statistics.mean(errors):.3f} | - |"


def main() -> None:
    """Print the tables that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path)
    for folder in (
        "--timm",
        "--neusight",
        "--h100",
        "--steps",
        "--networks",
        "--language",
        "--book",
        "--vision",
        "--fine-tuning",
        "--throughputs",
        "--model-tables",
    ):
        parser.add_argument(folder, type=Path)
    parser.add_argument("--kernels", action="store_true", help="kernels, each GPU left out in turn (minutes)")
    parser.add_argument("--studies", nargs="*", default=[])
    parser.add_argument("--traces", type=Path, nargs="+", default=[])
    parser.add_argument("--articles", action="store_true")
    given = parser.parse_args()
    parts: list[Iterable[str]] = []
    if given.timm:
        parts.append(of_timm(given.published, given.timm))
    if given.neusight:
        parts.append(of_neusight(given.neusight))
    if given.h100:
        parts.append(of_h100(given.h100))
    if given.steps:
        parts.append(of_published_steps(given.steps))
    if given.networks:
        parts.append(of_networks(given.networks))
    if given.language:
        parts.append(of_language_models(given.language))
    if given.book:
        parts.append(of_book_steps(given.book))
    if given.vision:
        parts.append(of_projects(given.vision, published_vision_steps.STEPS))
    if given.fine_tuning:
        parts.append(of_projects(given.fine_tuning, published_fine_tuning.STEPS))
    if given.throughputs:
        parts.append(of_throughputs(given.throughputs))
    if given.model_tables:
        parts.append(of_projects(given.model_tables, published_model_tables.STEPS))
    if given.kernels:
        parts.append(of_kernels(given.published, given.timm))
    parts += [of_studies(given.studies), *map(of_trace, given.traces), of_collectives(given.published)]
    print(HEAD)
    for row in chain.from_iterable(parts):
        print(row, flush=True)
    if given.articles:
        print(f"\nArticles:\n\n{articles()}")


if __name__ == "__main__":
    main()
