"""How far compiled steps of vision models are from timm's tables: figures of docs/evidence-compile.md, in one command.

    python bench/compile_timm.py PUBLISHED --out FOLDER [--only evaluation|calibration] [--at-most N] [--no-follow]

PUBLISHED holds `published/timm/*.csv` (pytorch-image-models, Apache-2.0): inference in AMP on an RTX 4090, eager and
with torch.compile (`-dynamo`), of PyTorch 2.4 and 2.9. Batches often differ between the two tables of a release, so
the published ratio compares the time per image. Each model that is drawn is followed once, at the batch of its compiled
step, with its operators and with the kernels that Inductor makes of them; the file of that is kept in FOLDER, so that
figures can be computed again. Needs timm. Models have random weights: nothing is downloaded.

Which models evaluate and which calibrate is drawn by a fixed seed: no model that evaluates gives a constant. Processor
seconds are those of following a model, with its child processes.
"""

import argparse
import csv
import random
import resource
import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

import estimate_timm
from estimate_timm import Program, follow_all, known_models, read
from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import gpu_named
from steptrace.estimate.step import draws_of, followed_step, uncompiled
from steptrace.estimate.times import band

SEED: Final = 49
GPU: Final = gpu_named("RTX-4090")
#: Rows of each release that evaluate and that calibrate.
EVALUATED: Final = 15
CALIBRATING: Final = 6
TABLES: Final = {
    "2.4": "benchmark-infer-amp-nchw-pt240-cu124-rtx4090",
    "2.9": "benchmark-infer-amp-nchw-pt291-cu128-4090",
}
#: A ratio within this share of the published one is near.
NEAR: Final = 0.2


class Row(NamedTuple):
    """A model's published steps of one release, in ms per image."""

    release: str
    program: Program
    eager: float
    compiled: float

    @property
    def ratio(self) -> float:
        """Compiled over eager."""
        return self.compiled / self.eager


def read_rows(folder: Path) -> list[Row]:
    """All models that have both."""
    rows = []
    for release, name in TABLES.items():
        tables = []
        for suffix in ("", "-dynamo"):
            with (folder / f"{name}{suffix}.csv").open() as file:
                tables.append({row["model"]: row for row in csv.DictReader(file) if row["infer_step_time"]})
        eager, compiled = tables
        for model, row in compiled.items():
            if model in eager and eager[model]["infer_img_size"] == row["infer_img_size"]:
                batch = int(row["infer_batch_size"])
                size = int(row["infer_img_size"])
                ms = [float(one["infer_step_time"]) / int(one["infer_batch_size"]) for one in (eager[model], row)]
                rows.append(Row(release, Program("compiled", "nchw", model, batch, size), *ms))
    return rows


def drawn(rows: Sequence[Row], known: Sequence[str]) -> tuple[list[Row], list[Row]]:
    """Which rows evaluate, and which calibrate: no model in both."""
    chance = random.Random(SEED)
    evaluating: list[Row] = []
    calibrating: list[Row] = []
    for release in TABLES:
        of_release = sorted(row for row in rows if row.release == release and row.program.model in known)
        taken = {row.program.model for row in (*evaluating, *calibrating)}
        chosen = chance.sample([row for row in of_release if row.program.model not in taken], EVALUATED + CALIBRATING)
        evaluating += chosen[:EVALUATED]
        calibrating += chosen[EVALUATED:]
    return evaluating, calibrating


def follow(program: Program) -> dict[str, Any]:
    """Follow a compiled model's second step."""
    import timm.layers
    import torch

    from steptrace.predict import Prediction, predict_syncs

    timm.layers.set_fast_norm(True)
    with predict_syncs(driver=driver_facts(GPU), follow_compiled=True) as syncs:
        model = torch.compile(estimate_timm._model(program).cuda().eval())
        images = torch.empty(program.batch, 3, program.size, program.size, device="cuda")
        step = estimate_timm._inference_step(model, images)
        for _ in range(2):
            syncs.reset()
            step()
        return Prediction.so_far(syncs).to_json()


def compared(
    rows: Sequence[Row], folder: Path
) -> list[tuple[Row, float | None, tuple[float, float], tuple[float, float]]]:
    """Each row with the middle and the band of its estimated ratio, and the band of its compiled ms per image."""
    result = []
    for row in rows:
        path = folder / row.program.file
        if not path.is_file():
            continue
        step = followed_step(read(path))
        if not step.items:
            result.append((row, None, (0.0, 0.0), (0.0, 0.0)))
            continue
        steps = [draws_of(one, GPU).timeline.step for one in (step, uncompiled(step))]
        ratio = steps[0] / steps[1]
        result.append((row, float(np.median(ratio)), band(ratio), band(1e3 * steps[0] / row.program.batch)))
    return result


def _show(name: str, rows: Sequence[Row], folder: Path) -> None:
    found = compared(rows, folder)
    print(f"\n{name}: {len(found)} of {len(rows)} models followed")
    for row, middle, (low, high), ms in found:
        estimated = "not lowered" if middle is None else f"{middle:.2f} ({low:.2f} to {high:.2f})"
        print(f"{row.release}  {row.program.model:50} published {row.ratio:.2f}  estimated {estimated}  "
              f"ms per image {row.compiled:.3f} in {ms[0]:.3f} to {ms[1]:.3f}")  # fmt: skip
    pairs = [(row, middle, ratio, ms) for row, middle, ratio, ms in found if middle is not None]
    if not pairs:
        return
    off = [middle / row.ratio - 1 for row, middle, *_ in pairs]
    print(f"ratio within {NEAR:.0%} of the published one: {sum(abs(one) <= NEAR for one in off)} of {len(found)}")
    print(f"direction right: {sum((middle < 1) == (row.ratio < 1) for row, middle, *_ in pairs)} of {len(found)}")
    print(f"published ratio in the band: {sum(a <= row.ratio <= b for row, _, (a, b), _ in pairs)} of {len(found)}")
    print(f"compiled step in the band: {sum(a <= row.compiled <= b for row, _, _, (a, b) in pairs)} of {len(found)}")
    print(f"median error {statistics.median(map(abs, off)):.0%}, median offset {statistics.median(off):+.0%}")


def main() -> None:
    """Follow what is not followed yet, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=["evaluation", "calibration"])
    parser.add_argument("--at-most", type=int)
    parser.add_argument("--no-follow", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = read_rows(options.published / "published/timm")
    evaluating, calibrating = drawn(rows, known_models([row.program.model for row in rows]))
    parts = {"calibration": calibrating, "evaluation": evaluating}
    parts = {name: part for name, part in parts.items() if options.only in (None, name)}
    programs = [row.program for part in parts.values() for row in part][: options.at_most]
    if not options.no_follow:
        for line in follow_all(programs, options.out, follow):
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            print(f"{line}, {used.ru_utime + used.ru_stime:.0f} s of processor time so far", flush=True)
    for name, part in parts.items():
        _show(name, part, options.out)


if __name__ == "__main__":
    main()
