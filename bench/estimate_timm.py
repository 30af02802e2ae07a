"""Steps of vision models, as timm's own benchmark runs them, followed on the virtual GPU.

    python bench/estimate_timm.py PUBLISHED --out FOLDER [--only evaluation|calibration|fresh] [--at-most N]

PUBLISHED holds `published/timm/*.csv` (pytorch-image-models, Apache-2.0). For each model that is drawn, the operators
of its step are written to FOLDER, so that constants can be derived and evaluated again without following it. Needs
timm (pip install timm; torchvision must be importable). Models have random weights: nothing is downloaded.

Which models evaluate and which calibrate is drawn by a fixed seed: no model that evaluates gives a constant. A second
seed draws models whose layouts are compared once more (`--only fresh`): the first ones had been looked at one by one.

Training: autocast to float16, cross entropy on a random target, SGD with momentum and one kernel for each operation and
parameter, attention unfused, a device sync at the end (PyTorch 1.12). Inference: autocast under inference_mode, fast
norms, fused attention, a sync (PyTorch 2.4).
"""

import argparse
import csv
import gzip
import json
import os
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from steptrace.documents.base import convert
from steptrace.documents.prediction import PredictedStep, predicted_step
from steptrace.documents.probe import Prediction as Followed

SEED: Final = 48
#: The seed of the models that are compared once more, and their number.
FRESH_SEED: Final = 4801
FRESH: Final = 60
#: Rows of each kind that evaluate.
EVALUATED: Final = 60
RATIOS: Final = 12
#: Models that are drawn to calibrate, and how many of these do, the first ones: following a model takes some
#: seconds.
DRAWN: Final = {"train": 110, "infer": 90}
CALIBRATING: Final = {"train": 80, "infer": 65}
#: Tables of published steps by kind, layout and GPU.
TABLES: Final = {
    ("train", "nchw", "RTX-3090"): "benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv",
    ("train", "nhwc", "RTX-3090"): "benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv",
    ("infer", "nchw", "RTX-3090"): "benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv",
    ("infer", "nhwc", "RTX-3090"): "benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv",
    ("infer", "nchw", "RTX-4090"): "benchmark-infer-amp-nchw-pt240-cu124-rtx4090.csv",
    ("infer", "nhwc", "RTX-4090"): "benchmark-infer-amp-nhwc-pt240-cu124-rtx4090.csv",
}
#: A model is given up after so many seconds.
LONGEST_S: Final = 240


class Program(NamedTuple):
    """A step of one model: what is followed."""

    mode: str
    layout: str
    model: str
    batch: int
    size: int

    @property
    def file(self) -> str:
        """The name of the file that holds its operators."""
        return f"{self.mode}-{self.layout}-{self.model}-{self.batch}-{self.size}.json.gz"


@dataclass(frozen=True)
class Row:
    """A published step."""

    program: Program
    gpu: str
    ms: float


@dataclass(frozen=True)
class Draw:
    """The published steps that evaluate, the models whose layouts are compared, and the steps that calibrate.

    `fresh`: more models whose layouts are compared. They neither evaluate nor calibrate.
    """

    evaluation: Mapping[str, Sequence[Row]]
    ratios: Sequence[tuple[Row, Row]]
    calibration: Sequence[Row]
    fresh: Sequence[tuple[Row, Row]] = ()


def read_rows(folder: Path) -> list[Row]:
    """All published steps."""
    rows = {}
    for (mode, layout, gpu), name in TABLES.items():
        with (folder / name).open() as file:
            for row in csv.DictReader(file):
                if not row[f"{mode}_step_time"]:
                    continue
                batch = int(row[f"{mode}_batch_size"])
                size = int(row[f"{mode}_img_size"])
                program = Program(mode, layout, row["model"], batch, size)
                rows[mode, layout, gpu, row["model"]] = Row(program, gpu, float(row[f"{mode}_step_time"]))
    return list(rows.values())


def drawn(rows: Sequence[Row], known: Sequence[str] | None = None) -> Draw:
    """Which rows evaluate and which calibrate; `known`: the models that the installed timm has."""
    rows = [row for row in rows if known is None or row.program.model in known]
    chance = random.Random(SEED)
    training = sorted((row.program.layout, row.program.model) for row in rows if row.program.mode == "train")
    inference = sorted((row.program.layout, row.gpu, row.program.model) for row in rows if row.program.mode == "infer")
    of_training, of_inference = chance.sample(training, EVALUATED), chance.sample(inference, EVALUATED)
    by_key = {(row.program.mode, row.program.layout, row.gpu, row.program.model): row for row in rows}
    pairs = {
        model: (by_key["train", "nchw", "RTX-3090", model], by_key["train", "nhwc", "RTX-3090", model])
        for layout, model in training
        if layout == "nchw" and ("train", "nhwc", "RTX-3090", model) in by_key
    }
    alike = sorted(model for model, (a, b) in pairs.items() if a.program[3:] == b.program[3:])
    compared = chance.sample(alike, RATIOS)
    held = {model for _, model in of_training} | {model for *_, model in of_inference} | set(compared)
    of_modes = {
        mode: chance.sample(rest, min(count, len(rest)))
        for mode, count in DRAWN.items()
        for rest in [sorted({row.program.model for row in rows if row.program.mode == mode} - held)]
    }
    used = held.union(*of_modes.values())
    calibrating = {mode: models[: CALIBRATING[mode]] for mode, models in of_modes.items()}
    unused = [model for model in alike if model not in used]
    fresh = random.Random(FRESH_SEED).sample(unused, min(FRESH, len(unused)))
    return Draw(
        evaluation={
            "training": [by_key["train", layout, "RTX-3090", model] for layout, model in of_training],
            "inference": [by_key["infer", *key] for key in of_inference],
        },
        ratios=[pairs[model] for model in compared],
        calibration=[row for row in rows if row.program.model in calibrating[row.program.mode]],
        fresh=[pairs[model] for model in fresh],
    )


def programs_of(draw: Draw, only: str | None = None) -> list[Program]:
    """The programs to follow, each once; `only`: `evaluation`, `calibration` or `fresh`."""
    if only == "fresh":
        return [row.program for pair in draw.fresh for row in pair]
    evaluation = [row for rows in draw.evaluation.values() for row in rows] + [
        row for pair in draw.ratios for row in pair
    ]
    rows = [*([] if only == "calibration" else evaluation), *([] if only == "evaluation" else draw.calibration)]
    return list(dict.fromkeys(row.program for row in rows))


def followed(folder: Path, program: Program) -> PredictedStep | None:
    """The prediction of a program, None where it was not followed."""
    path = folder / program.file
    if not path.is_file():
        return None
    return read(path)


def read(path: Path) -> PredictedStep:
    """A step that was followed alone, from the file of its `Prediction.to_json()`."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return predicted_step([convert(json.load(file), Followed)])


def follow(program: Program) -> dict[str, Any]:
    """Follow a step of a model; what the probe would say of it."""
    import timm.layers
    import torch

    from steptrace.predict import Prediction, predict_syncs

    training = program.mode == "train"
    timm.layers.set_fused_attn(not training)
    timm.layers.set_fast_norm(not training)
    layout = torch.channels_last if program.layout == "nhwc" else torch.contiguous_format
    with predict_syncs() as syncs:
        model = _model(program).cuda().train(training).to(memory_format=layout)
        images = torch.empty(program.batch, 3, program.size, program.size, device="cuda").contiguous(
            memory_format=layout
        )
        step = _training_step(model, images) if training else _inference_step(model, images)
        syncs.reset()
        step()
        return Prediction.so_far(syncs).to_json()


def _model(program: Program) -> Any:
    import timm

    try:
        return timm.create_model(program.model, pretrained=False, img_size=program.size)
    except TypeError:
        return timm.create_model(program.model, pretrained=False)


def _training_step(model: Any, images: Any) -> Any:
    import torch

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in parameters if parameter.ndim > 1]
    groups = [{"params": decayed, "weight_decay": 1e-4}, {"params": [p for p in parameters if p.ndim <= 1]}]
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9, nesterov=True, foreach=False)
    for parameter in parameters:  # as from the second step on
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            output = model(images)
        output = output[0] if isinstance(output, list | tuple) else output
        target = torch.empty(output.shape[:1], device="cuda", dtype=torch.long).random_(output.shape[1])
        torch.nn.functional.cross_entropy(output, target).backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def _inference_step(model: Any, images: Any) -> Any:
    import torch

    def step() -> None:
        with torch.inference_mode(), torch.autocast("cuda", torch.float16):
            model(images)
        torch.cuda.synchronize()

    return step


def follow_all(
    programs: Sequence[Program], out: Path, follow: Callable[[Program], dict[str, Any]] = follow
) -> Iterator[str]:
    """Follow each program in a process of its own, unless its file is there; a line for each."""
    out.mkdir(parents=True, exist_ok=True)
    for program in programs:
        path = out / program.file
        if path.is_file():
            continue
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            signal.alarm(LONGEST_S)
            try:
                with gzip.open(path.with_suffix(".part"), "wt", encoding="utf-8", compresslevel=3) as file:
                    json.dump(follow(program), file)
                path.with_suffix(".part").rename(path)
                os._exit(0)
            except Exception as error:
                print(f"{program.file}: {type(error).__name__}: {str(error)[:200]}", flush=True)
                os._exit(1)
        os.waitpid(child, 0)
        yield f"{program.file}: {time.monotonic() - began:.1f} s"


def known_models(models: Sequence[str]) -> list[str]:
    """Those of the models that the installed timm has."""
    from timm.models import is_model

    return [model for model in models if is_model(model.partition(".")[0])]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=["evaluation", "calibration", "fresh"])
    parser.add_argument("--at-most", type=int)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    published = read_rows(options.published / "published/timm")
    known = known_models([row.program.model for row in published])
    wanted = programs_of(drawn(published, known), options.only)
    for line in follow_all(wanted[: options.at_most], options.out):
        print(line, flush=True)
