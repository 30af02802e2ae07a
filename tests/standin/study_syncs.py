"""What a step of studies' variants does, predicted and on the stand-in device, in small sizes.

    python tests/standin/study_syncs.py masked_loss giou [--summary]

Host syncs: predicted, warned of by PyTorch, and read from the trace. Launches and peak memory: predicted, and launched
and allocated. Libraries' workspaces, which no estimate has, are switched off. A call of the simulated cuDNN launches
one kernel. An estimate of a 16-bit convolution with channels first also has the kernels by which cuDNN converts images
to its own layout inside that call. Launches are compared without these.

Each study's variants train one after the other on the stand-in device, in one process, and are predicted in another.
Variants of several ranks train one at a time, and rank 0's figures count. How many elements masks select is computed,
which the device does not: it is told what the predictions counted, where that is one number. Variants that need
torch.compile are left out.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from steptrace.analysis.build import summarize
from steptrace.commands.follow_study import named_study
from steptrace.documents.estimate import Estimate
from steptrace.estimate.gpus import gpu_named
from steptrace.estimate.step import estimate_prediction
from steptrace.estimate.work import CONVERSION
from steptrace.jobs.supervise import Job, supervise
from steptrace.run_folder import read_prediction

WITHOUT_WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":0:0", "CUBLASLT_WORKSPACE_SIZE": "0"}

#: A step of several ranks then takes 0.2 s or more. NCCL's watchdog looks every 0.1 s for collectives that are done,
#: and holds their tensors until then: DistributedDataParallel's first buckets, too, which end with the warm-up steps.
LONG_KERNEL_US = "1000"

#: At most these sizes, where a study's configuration has the key.
LARGEST = {
    "model": {"hidden": 32, "width": 64, "blocks": 2, "heads": 4, "layers": 3, "boxes": 16, "image_size": 64},
    "data.dataset": {"image_size": 64, "crop": 32, "length": 64, "max_boxes": 16},
    "data": {"batch_size": 4, "num_workers": 1, "pool": 2},
    "scale": {"warmup_steps": 6, "timed_steps": 2, "section_steps": 0, "input_steps": 0},
    "profile": {"warmup": 1, "active": 2},
    "step": {"read_loss_every": 2},
}


def small(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with every size cut to `LARGEST`."""
    made = OmegaConf.create(config)
    for place, sizes in LARGEST.items():
        node = OmegaConf.select(made, place)
        for key, largest in sizes.items():
            if node.get(key) is not None:
                node[key] = min(node[key], largest)
    return OmegaConf.to_container(made)


def configs_of(study: str, folder: Path) -> list[Path]:
    """A small configuration of each variant that needs no compiler."""
    written = []
    for variant in named_study(study, folder / "cache", {"scale": "gpu"}).variants:
        config = variant.config
        compiled = config["step"]["compile"] or "compiled" in variant.name
        if not compiled:
            written.append(folder / variant.name / "config.yaml")
            written[-1].parent.mkdir(parents=True)
            names = {"study": study, "variant": variant.name, "digest": variant.digest}
            written[-1].write_text(OmegaConf.to_yaml(OmegaConf.create({**names, **small(config)})))
    return written


def predict(configs: list[str]) -> int:
    """Follow each configuration's step on the virtual device of the prediction."""
    from steptrace.predict.main import main

    return max(main(["--config", path, "--out", str(Path(path).parent)]) for path in configs)


def train(configs: list[str]) -> int:
    """Train each configuration on the devices that PyTorch has: on this one, or by several ranks on as many."""
    for path in configs:
        ranks = OmegaConf.load(path).distributed.world_size
        if ranks > 1:
            os.environ |= {"FAKECUDA_DEVICES": str(ranks), "FAKECUDA_KERNEL_US": LONG_KERNEL_US}
        ((job, status),) = supervise([Job(Path(path).parent / "run0", variant=Path(path))])
        if status.status != "ok":
            sys.stderr.write(f"{job.out}: {status.error}\n")
            return 1
    return 0


def selected(prediction: Path) -> set[int]:
    """How many elements masks selected in the steps that a prediction followed."""
    calls = json.loads(prediction.read_text())["followed"]["operator_calls"]
    return {
        call["outputs"][0]["shape"][0]
        for call in calls
        if call["name"].startswith("aten.index.") and call["inputs"][-1]["dtype"] == "bool"
    }


def launches_of_pytorch(estimate: Estimate) -> float:
    """Launches per step without those by which cuDNN converts layouts inside its calls."""
    assert estimate.launches is not None
    return estimate.launches - sum(one.launches for one in estimate.work if one.kind == CONVERSION)


class Figures(NamedTuple):
    """Of a step: syncs predicted, warned of and traced; launches and peak bytes, predicted and on the device."""

    predicted: float
    warned: float
    traced: float
    estimated_launches: float
    launches: float
    predicted_peak: int
    peak: int


def table(study: str, folder: Path) -> dict[str, Figures]:
    """The figures of each variant."""
    configs = configs_of(study, folder)
    settings = {**os.environ, **WITHOUT_WORKSPACES}
    for part in ("predict", "train"):
        subprocess.run([sys.executable, __file__, f"--{part}", *configs], check=True, stdout=sys.stderr, env=settings)
        counts = {count for config in configs for count in selected(config.with_name("prediction.json"))}
        if len(counts) == 1:
            settings["FAKECUDA_COMPUTED_SIZE"] = str(counts.pop())
    by_variant = {}
    for config in configs:
        run = config.parent / "run0"
        prediction = read_prediction(config.parent)
        warned = json.loads((run / "warned_syncs.json").read_text())["per_step"]
        trace = summarize([run])[0].traces[0]
        estimate = estimate_prediction(prediction, gpu_named("H100"))
        by_variant[config.parent.name] = Figures(
            prediction.syncs_per_step,
            warned,
            trace.syncs.per_step,
            launches_of_pytorch(estimate),
            trace.launches.count / trace.overview.steps,
            prediction.peak_memory_bytes or 0,
            json.loads((run / "run.json").read_text())["peak_allocated_bytes"],
        )
    return by_variant


def summary(study: str, by_variant: dict[str, Figures]) -> str:
    """A row of a table of launches and memory, in Markdown."""
    launches = {name: one.estimated_launches / one.launches - 1 for name, one in by_variant.items()}
    peaks = {name: one.predicted_peak / one.peak - 1 for name, one in by_variant.items()}
    cells = [study, str(len(by_variant))]
    for differences in (launches, peaks):
        farthest = max(differences, key=lambda name: abs(differences[name]))
        within = sum(abs(one) <= (0.02 if differences is launches else 0.05) for one in differences.values())
        cells += [str(within), f"{100 * differences[farthest]:+.1f} % ({farthest})"]
    return f"| {' | '.join(cells)} |\n"


def _main(names: list[str]) -> int:
    parts = {"--predict": predict, "--train": train}
    if names[0] in parts:
        return parts[names[0]](names[1:])
    if "--summary" in names:
        sys.stdout.write("| study | variants | launches within 2 % | farthest | peak within 5 % | farthest |\n")
        sys.stdout.write("|---|---|---|---|---|---|\n")
    else:
        sys.stdout.write("study variant " + " ".join(Figures._fields) + "\n")
    for study in (name for name in names if name != "--summary"):
        with tempfile.TemporaryDirectory() as folder:
            by_variant = table(study, Path(folder))
        if "--summary" in names:
            sys.stdout.write(summary(study, by_variant))
        else:
            for variant, one in by_variant.items():
                sys.stdout.write(f"{study} {variant} {' '.join(f'{figure:.12g}' for figure in one)}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
