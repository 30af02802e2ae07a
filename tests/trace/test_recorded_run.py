"""A run recorded by the training itself: the trace, and the lines beside it, name each waiting line of a loss.

On a CPU nothing waits, so a waiting call is put into every operator that waits on a GPU.
"""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict
from omegaconf import OmegaConf

from steptrace.analysis import load_trace, summarize_trace
from steptrace.config.schema import DistributedConfig, ScaleConfig, StepConfig
from variant_runs import measure

pytest.importorskip("torch")

#: Operators of the loss that copy a size or a value to the host on a GPU.
_WAITING = ("aten::nonzero", "aten::_unique2")

_LOSS = """\
import torch
from torch.profiler import record_function


class Loss(torch.nn.Module):
    def forward(self, output, target):
        with record_function("mask"):
            mask = target > 0
            target = target[mask]
            output = output.permute(0, 2, 3, 1)[mask]
        return self.total(output, target)

    def total(self, output, target):
        kept = torch.nonzero(target)
        return output.sum() / len(kept)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "my_loss.py").write_text(_LOSS)
    config: dict[str, Any] = {
        "study": "s", "variant": "v", "digest": "0" * 64, "seed": 1, "device": "cpu",
        "model": {
            "_target_": "steptrace.workloads.segmentation.SegmentationNet",
            "in_channels": 3, "hidden": 2, "layers": 1, "classes": 10,
        },
        "loss": {"_target_": "my_loss.Loss"},
        "data": {
            "dataset": {
                "_target_": "steptrace.workloads.segmentation.RandomMasks", "length": 6, "image_size": 8, "seed": 7,
            },
            "batch_size": 2, "num_workers": 0, "pin_memory": False, "non_blocking": False, "shuffle": False,
            "prefetch_factor": None, "persistent_workers": False, "device_prefetch": False, "pool": None,
        },
        "optimizer": {"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.1},
        "precision": {
            "name": "fp32", "autocast": None, "tf32": False, "grad_scaler": False,
            "tolerance": {"loss": 1e-5, "gradient": 1e-4},
        },
        "step": asdict(StepConfig()),
        "distributed": asdict(DistributedConfig()),
        "scale": asdict(ScaleConfig(name="cpu", warmup_steps=1, timed_steps=2)),
        "profile": {
            "warmup": 1, "active": 2, "record_shapes": False, "profile_memory": False, "with_stack": True,
            "repeats": None,
        },
        "equivalence": {"seeds": [0], "batch_size": 2, "model": {}},
        "python_path": [str(folder)],
    }  # fmt: skip
    OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
    assert measure(folder / "config.yaml", folder / "run0").status == "ok"
    return folder / "run0"


def _sites(run: Path, out: Path, *, with_lines: bool) -> set[tuple[Any, ...]]:
    trace = json.loads(gzip.decompress((run / "trace.json.gz").read_bytes()))
    for number, op in enumerate(event for event in trace["traceEvents"] if event["name"] in _WAITING):
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": op["pid"], "tid": op["tid"]}
        args = {"correlation": number + 1, "External id": op["args"]["External id"]}
        trace["traceEvents"].append({**call, "ts": op["ts"] + op["dur"] * 0.7, "dur": 0.01, "args": args})
    out.mkdir()
    (out / "trace.json").write_text(json.dumps(trace))
    if with_lines:
        for name in ("op_lines.parquet", "sources.json"):
            shutil.copy(run / name, out / name)
    sites = summarize_trace(load_trace(out / "trace.json")).syncs.sites
    return {(Path(str(s.file)).name, s.line, s.function, s.phase, s.code, s.count_per_step) for s in sites}


def test_each_wait_has_its_own_line(run: Path, tmp_path: Path) -> None:
    assert _sites(run, tmp_path / "x", with_lines=True) == {
        ("my_loss.py", 9, "forward", "loss", "target = target[mask]", 1.0),
        ("my_loss.py", 10, "forward", "loss", "output = output.permute(0, 2, 3, 1)[mask]", 1.0),
        ("my_loss.py", 10, "forward", "backward", "output = output.permute(0, 2, 3, 1)[mask]", 1.0),
        ("my_loss.py", 14, "total", "loss", "kept = torch.nonzero(target)", 1.0),
    }


def test_without_the_lines_each_wait_has_its_function(run: Path, tmp_path: Path) -> None:
    assert _sites(run, tmp_path / "x", with_lines=False) == {
        ("my_loss.py", 6, "forward", "loss", None, 2.0),
        ("my_loss.py", 6, "forward", "backward", None, 1.0),
        ("my_loss.py", 13, "total", "loss", None, 1.0),
    }
