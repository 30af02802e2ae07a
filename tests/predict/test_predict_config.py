"""Whole training steps: the masked losses, resolved configs, and the command line."""

import gc
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from msgspec.structs import asdict
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from steptrace.config.schema import StepConfig, defaults
from steptrace.engine.frames import trace_file_name
from steptrace.errors import ConfigError, PredictError
from steptrace.limits import PERIOD_JUDGED
from steptrace.predict import Prediction, predict_syncs
from steptrace.predict.main import main, predict_config
from steptrace.predict.sync_rule import declared_rules
from steptrace.workloads import masked_losses

LOSSES = {
    "BooleanMaskLoss": [
        ("torch.nonzero(", "d2h_copy", "forward", "non_zero"),
        ("target[background] = ", "h2d_copy", "forward", "index assignment"),
        ("torch.unique(", "d2h_copy", "forward", "unique"),
        ("target[mask]", "d2h_copy", "forward", "mask"),
        ("logits[mask]", "d2h_copy", "forward", "mask"),
        ("logits[mask]", "d2h_copy", "backward", "backward"),
    ],
    "WhereLoss": [
        ("torch.unique(", "d2h_copy", "forward", "unique"),
        ("target[mask]", "d2h_copy", "forward", "mask"),
        ("logits[mask]", "d2h_copy", "forward", "mask"),
        ("logits[mask]", "d2h_copy", "backward", "backward"),
    ],
    "SortLoss": [
        ("target[mask]", "d2h_copy", "forward", "mask"),
        ("logits[mask]", "d2h_copy", "forward", "mask"),
        ("logits[mask]", "d2h_copy", "backward", "backward"),
    ],
    "IgnoreIndexLoss": [],
}


def config(loss: str = "IgnoreIndexLoss", **data: Any) -> dict[str, Any]:
    workloads = "steptrace.workloads"
    return defaults() | {
        **dict.fromkeys(("study", "variant", "digest"), ""),
        "model": {"_target_": f"{workloads}.segmentation.SegmentationNet", "hidden": 4, "layers": 1},
        "loss": {"_target_": f"{workloads}.masked_losses.{loss}"},
        "data": {
            "dataset": {"_target_": f"{workloads}.segmentation.RandomMasks", "length": 4, "image_size": 8},
            "batch_size": 2, "num_workers": 2, "pin_memory": True, "non_blocking": True,
            "prefetch_factor": None, "persistent_workers": False, "shuffle": True, **data,
        },
        "optimizer": {"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.001, "momentum": 0.9},
        "precision": {"name": "fp32", "autocast": None, "tf32": False, "grad_scaler": False},
        "scale": {"name": "cpu", "warmup_steps": 1, "timed_steps": 1},
        "profile": {"warmup": 0, "active": 1},
    }  # fmt: skip


@pytest.fixture(autouse=True)
def _process_as_before():
    """A prediction has a process of its own, but for these tests."""
    path = sys.path[:]
    products = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    with torch.random.fork_rng(devices=[]):
        yield
    sys.path[:] = path
    torch.set_float32_matmul_precision(products)
    torch.backends.cudnn.allow_tf32 = convolutions


@pytest.fixture
def write(tmp_path):
    def writing(value: dict[str, Any]) -> Path:
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(value))
        return path

    return writing


@pytest.mark.parametrize("loss", LOSSES)
def test_masked_losses(loss, write):
    prediction = predict_config(write(config(loss)))
    assert prediction.total == len(LOSSES[loss])
    assert not prediction.unknown
    for site, (code, kind, phase, label) in zip(prediction.sites, LOSSES[loss], strict=True):
        assert code in site.code
        assert (site.kind, site.phase, site.label, site.count) == (kind, phase, label, 1)
        assert site.file == trace_file_name(masked_losses.__file__)
    assert {"data", "forward", "loss", "backward", "optimizer"} <= set(prediction.operators_per_section)


@pytest.mark.parametrize(
    ("pin_memory", "non_blocking", "expected"), [(True, True, 0), (False, True, 0), (True, False, 2), (False, False, 2)]
)
def test_the_copy_of_a_batch(pin_memory, non_blocking, expected, write):
    prediction = predict_config(write(config(pin_memory=pin_memory, non_blocking=non_blocking)))
    assert prediction.total == expected
    # Nobody's line: only PyTorch and the pipeline are on the stack.
    assert {(s.kind, s.label, s.file, s.line) for s in prediction.sites} <= {("h2d_copy", "copy data", None, None)}


def test_a_batch_that_is_copied_ahead_is_held_during_the_step_before(write):
    in_step, ahead = (predict_config(write(config(device_prefetch=value))) for value in (False, True))
    batch = 2 * 8 * 8 * (3 * 4 + 8)  # images in float32 and targets in int64
    assert ahead.total == in_step.total == 0
    assert ahead.peak_memory_bytes - in_step.peak_memory_bytes >= batch


def test_a_copy_ahead_that_the_host_waits_for_is_a_sync(write):
    assert predict_config(write(config(device_prefetch=True, non_blocking=False))).total == 2


@pytest.mark.parametrize(("autocast", "scaler", "expected"), [("bf16", False, 0), ("fp16", True, 1)])
def test_precision(autocast, scaler, expected, write):
    value = config() | {"precision": {"name": "one", "autocast": autocast, "tf32": False, "grad_scaler": scaler}}
    prediction = predict_config(write(value))
    assert prediction.total == expected
    assert [site.label for site in prediction.sites] == ["optimizer"] * expected


def test_of_several_ranks_one_copies_and_reduces_its_gradients(write):
    def followed(**distributed: Any) -> tuple[Counter[str], int]:
        value = config()
        value["distributed"] |= distributed
        prediction = predict_config(write(value))
        assert (prediction.total, prediction.unknown) == (0, ())
        calls: Counter[str] = Counter()
        for call in prediction.operator_calls:
            calls[call.name] += call.calls
        return calls, prediction.peak_memory_bytes or 0

    alone = followed()
    parameters = 6
    forms: list[tuple[dict[str, Any], int]] = [
        ({}, 2 * parameters), ({"gradient_as_bucket_view": True}, parameters), ({"static_graph": True}, 2 * parameters),
        ({"comm_hook": "bf16"}, 2 * parameters + 1),
    ]  # fmt: skip
    for settings, copies in forms:
        of_rank, with_buckets = followed(world_size=2, **settings)
        assert of_rank["c10d.allreduce_.default"] == 1
        assert sum(of_rank[name] for name in ("aten.mul.out", "aten.copy_.default")) == copies
        assert with_buckets > alone[1]
    assert followed() == alone


def test_no_model_outlives_its_group(write, monkeypatch):
    alive = []
    destroy = dist.destroy_process_group

    def destroying() -> None:
        alive.append(sum(type(one) is DistributedDataParallel for one in gc.get_objects()))
        destroy()

    monkeypatch.setattr(dist, "destroy_process_group", destroying)
    value = config()
    value["distributed"]["world_size"] = 2
    predict_config(write(value))
    assert alive == [0]


def test_a_compiled_model_is_followed_uncompiled_with_a_note(write):
    eager = predict_config(write(config("WhereLoss")))
    prediction = predict_config(write(config("WhereLoss") | {"step": asdict(StepConfig(compile="default"))}))
    assert prediction.total == eager.total == 4
    assert {unknown.op for unknown in prediction.unknown} == {"torch.compile"}


def test_batch_size_can_be_smaller(write):
    assert predict_config(write(config("WhereLoss", batch_size=4)), batch_size=1).total == 4


def test_the_samples_of_a_step_are_those_of_all_its_batches(write):
    value = config()
    value["step"] = value["step"] | {"accumulate": 4}
    assert predict_config(write(value)).batch_size == 8


def test_no_more_images_are_written_than_two_steps_take(tmp_path, write):
    images = "steptrace.workloads.images"
    dataset = {"_target_": f"{images}.Images", "length": 10**9, "image_size": 8, "crop": 4, "folder": str(tmp_path)}
    value = config(dataset=dataset, batch_size=8, non_blocking=False) | {
        "model": {"_target_": f"{images}.ImageClassifier", "width": 2, "layers": 1, "halvings": 0, "classes": 10},
        "loss": {"_target_": "torch.nn.CrossEntropyLoss"},
    }
    prediction = predict_config(write(value))
    assert (prediction.batch_size, prediction.total) == (8, 2)  # the copies of images and labels
    (folder,) = (entry for entry in tmp_path.iterdir() if entry.is_dir())
    assert len(list(folder.rglob("*.png"))) == 16


OWN_OPERATORS = """
import torch
from torch import nn

torch.library.define("steptrace_test::twice", "(Tensor x) -> Tensor")
torch.library.define("steptrace_test::other", "(Tensor x) -> Tensor")
for name in ("twice", "other"):
    torch.library.impl(f"steptrace_test::{name}", "CPU")(lambda x: x * 2)


class Loss(nn.Module):
    predict_rules = [
        {"op": "steptrace_test::twice", "syncs": 1, "kind": "d2h_copy", "source": "loss.cu", "reason": "reads a count"}
    ]

    def __init__(self):
        super().__init__()
        self.compiled = torch.compile(lambda x: x + 1)

    def forward(self, output, target):
        twice = torch.ops.steptrace_test.twice(output.detach())
        return self.compiled(output.mean() + torch.ops.steptrace_test.other(twice).mean())
"""


def test_a_loss_declares_its_operators_and_the_rest_is_unknown(write, tmp_path):
    (tmp_path / "own_operators.py").write_text(OWN_OPERATORS)
    value = config() | {"loss": {"_target_": "own_operators.Loss"}, "python_path": [str(tmp_path)]}
    prediction = predict_config(write(value))
    (site,) = prediction.sites
    assert (site.op, site.kind, site.count) == ("steptrace_test::twice", "d2h_copy", 1)
    assert site.reason == "reads a count"
    assert "torch.ops.steptrace_test.twice(" in site.code
    # What was compiled before the predicted step is not forgotten with the step before it.
    assert {unknown.op for unknown in prediction.unknown} == {"steptrace_test::other", "torch.compile"}
    assert all(unknown.line for unknown in prediction.unknown)


@pytest.mark.parametrize("row", [{"op": "a::b"}, {"op": "a::b", "syncs": 1, "kind": "nap", "source": "", "reason": ""}])
def test_a_row_that_says_too_little_is_refused(row):
    with pytest.raises(PredictError, match="SimpleNamespace"):
        declared_rules(SimpleNamespace(predict_rules=[row]))


def test_command_line(tmp_path, write, capsys):
    assert main(["--config", str(write(config("SortLoss"))), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == "3 syncs, 0 operations not covered\n"
    written = json.loads((tmp_path / "out" / "prediction.json").read_text())
    keys = {
        "total", "sites", "unknown", "assumed", "operators_per_section", "operators", "batch_size",
        "gpu", "early_reads", "peak_memory_bytes", "followed", "devices", "tf32", "tf32_convolutions",
        "by_step", "warmup_by_step", "by_rank", "branches", "awaited", "gpus", "exit_code",
    }  # fmt: skip
    assert set(written) == keys | {"schema_version"}
    assert written["total"] == 3
    assert set(written["sites"][0]) == {
        "kind", "op", "file", "line", "function", "code", "label", "phase", "count", "reason",
        "pinned", "program_file", "program_line", "by_step",
    }  # fmt: skip


@pytest.mark.parametrize("text", [None, "- a list", "seed: 0"])
def test_bad_configs(tmp_path, text, capsys):
    path = tmp_path / "bad.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError):
        predict_config(path)
    assert main(["--config", str(path), "--out", str(tmp_path)]) == 2
    assert "error: " in capsys.readouterr().err
    assert not (tmp_path / "prediction.json").exists()


def test_a_prediction_is_frozen():
    with predict_syncs() as syncs:
        x = torch.ones(1, device="cuda")
        prediction = Prediction.so_far(syncs)
        x.item()
    assert (prediction.total, syncs.total) == (0, 1)


def test_lists_of_a_config_reach_a_class_as_python_s_own(write):
    model = {
        "_target_": "torch.nn.Sequential",
        "_args_": [
            {"_target_": "torch.nn.Conv2d", "in_channels": 3, "out_channels": 10, "kernel_size": [1, 1]},
            {"_target_": "torch.nn.Upsample", "size": [8, 8]},  # refuses OmegaConf's lists
        ],
    }
    assert predict_config(write(config() | {"model": model})).total == 0


def test_products_are_in_tf32_where_the_config_allows_it(write):
    for tf32 in (True, False):
        value = config() | {"precision": {"name": "one", "autocast": None, "tf32": tf32, "grad_scaler": False}}
        prediction = predict_config(write(value))
        assert (prediction.tf32, prediction.tf32_convolutions) == (tf32, tf32)


def test_a_batch_that_a_data_set_of_ours_is_too_short_for_is_whole(write):
    peaks = set()
    for length in (1, 200):
        value = config()
        value["data"]["dataset"]["length"] = length
        peaks.add(predict_config(write(value), batch_size=64).peak_memory_bytes)
    assert len(peaks) == 1


@pytest.mark.parametrize(("every", "by_step"), [(None, ()), (1, ()), (3, (0, 0, 1))])
def test_a_loss_that_is_read_in_every_nth_step_is_one_sync_in_as_many_steps(write, every, by_step):
    prediction = predict_config(write(config() | {"step": asdict(StepConfig(read_loss_every=every))}))
    assert prediction.total == (0 if every is None else 1)
    assert sorted(prediction.by_step) == sorted(by_step)


def test_a_loss_that_is_hardly_ever_read_is_not_followed_to_its_read(write):
    """A thousand million steps would be followed."""
    prediction = predict_config(write(config() | {"step": asdict(StepConfig(read_loss_every=1_000_000_000))}))
    assert (prediction.total, len(prediction.by_step)) == (0, PERIOD_JUDGED)
    assert [branch.every for branch in prediction.branches] == [1_000_000_000]


def test_a_loss_that_reads_its_value_now_and_then_is_followed_for_a_whole_period(write, tmp_path):
    """The counter of a class is its own: the loop that trains it has none."""
    (tmp_path / "counting_loss.py").write_text(
        "import torch\n"
        "class Loss(torch.nn.Module):\n"
        "    calls = 0\n"
        "    def forward(self, logits, target):\n"
        "        self.calls += 1\n"
        "        loss = torch.nn.functional.cross_entropy(logits, target.clamp(0))\n"
        "        if self.calls % 5 == 0:\n"
        "            print(loss.item())\n"
        "        return loss\n"
    )
    changed = config() | {"loss": {"_target_": "counting_loss.Loss"}, "python_path": [str(tmp_path)]}
    prediction = predict_config(write(changed))
    assert (prediction.total, sorted(prediction.by_step)) == (1, [0, 0, 0, 0, 1])
    assert [(branch.line, branch.every) for branch in prediction.branches] == [(7, 5)]
