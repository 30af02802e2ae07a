"""Callbacks in real trainings: what they log, and how many of PyTorch's own warnings they count."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from steptrace.callbacks import StepLog

FRAMEWORK = "it is not among the test requirements: make test-frameworks"


def test_a_log_has_the_mean_time_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([10.0, 10.5, 20.0, 21.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    log = StepLog(every=2)
    entries = []
    for _ in range(2):
        log.begin()
        entries.append(log.end())
    log.stop()  # an evaluation of ten seconds
    for _ in range(2):
        log.begin()
        entries.append(log.end())
    assert entries == [None, {"steptrace/step_ms": 250.0}, None, {"steptrace/step_ms": 500.0}]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_log_counts_the_syncs_of_one_step() -> None:
    log = StepLog(every=3)
    value = torch.ones(3, device="cuda")
    entries = []
    for reads in (5, 0, 2, 5, 0, 1):
        log.begin()
        for _ in range(reads):
            value.sum().item()
        entries.append(log.end())
    assert [entry and entry["steptrace/syncs"] for entry in entries] == [None, None, 2, None, None, 1]
    assert torch.cuda.get_sync_debug_mode() == 0


LIGHTNING = """
import warnings; warnings.simplefilter("ignore")
import lightning, torch
from steptrace.callbacks.lightning import SyncLog

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(8, 1)
    def training_step(self, batch, _):
        return self.model(batch).square().mean()
    def validation_step(self, batch, _):
        pass
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)

loader = torch.utils.data.DataLoader(torch.randn(160, 8), batch_size=8)
log, logger = SyncLog(every=5), lightning.pytorch.loggers.CSVLogger(".")
options = dict(enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")
lightning.Trainer(max_epochs=1, callbacks=[log], logger=logger, val_check_interval=10, **options).fit(
    Module(), loader, loader)
print(*[step for step, _ in log.entries], *sorted({key for _, entry in log.entries for key in entry}))
print(open(logger.log_dir + "/metrics.csv").readline())
"""
TRANSFORMERS = """
import warnings; warnings.simplefilter("ignore")
import torch
from transformers import Trainer, TrainingArguments
from steptrace.callbacks.transformers import SyncLog

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}

data = [{"x": torch.randn(8)} for _ in range(80)]
arguments = TrainingArguments("out", max_steps=10, per_device_train_batch_size=4, report_to=[], save_strategy="no",
                              use_cpu=True, disable_tqdm=True, remove_unused_columns=False)
log = SyncLog(every=5)
trainer = Trainer(Model(), arguments, train_dataset=data, callbacks=[log])
if SENT:
    log.log = trainer.log
trainer.train()
found = [entry for entry in trainer.state.log_history if "steptrace/step_ms" in entry]
print(*[entry["step"] for entry in found], *sorted({key for entry in found for key in entry if "steptrace" in key}))
"""


def _run(program: str, folder: Path) -> list[str]:
    environment: dict[str, Any] = {"cwd": folder, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", program], check=False, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.frameworks
def test_lightning_logs_to_its_loggers(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason=FRAMEWORK)
    *_, logged, head, _ = _run(LIGHTNING, tmp_path)
    assert logged == "5 10 15 20 steptrace/step_ms"
    assert "steptrace/step_ms" in head.split(",")


@pytest.mark.frameworks
@pytest.mark.parametrize("sent", [False, True])
def test_transformers_logs_to_its_state(sent: bool, tmp_path: Path) -> None:  # noqa: FBT001
    pytest.importorskip("transformers", reason=FRAMEWORK)
    pytest.importorskip("accelerate", reason=FRAMEWORK)
    assert "5 10 steptrace/step_ms" in _run(TRANSFORMERS.replace("SENT", str(sent)), tmp_path)
