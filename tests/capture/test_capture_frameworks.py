"""The callbacks of frameworks, with the real ones: every step of a training is counted, and one capture made."""

from pathlib import Path

import pytest

from steptrace.capture import frameworks, job
from steptrace.recording import Request, Settings

WHY = "it is not among the test requirements: make test-frameworks"
pytestmark = pytest.mark.frameworks


@pytest.fixture
def captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the steps that are told; the third asks for a capture."""
    told: list[int] = []
    step = job.Capture.step

    def counted(self: job.Capture) -> None:
        told.append(len(told) + 1)
        if len(told) == 3:
            self._accept(Request("test", str(tmp_path / "capture"), Settings(steps=1, warmup=1)))
            self._look_at = 0  # as after a request
        step(self)

    monkeypatch.setattr(job.Capture, "step", counted)
    return told


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path: Path, captured: list[int]) -> None:
    lightning = pytest.importorskip("lightning", reason=WHY)
    import torch

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    parts = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    callback = frameworks.lightning_callback(tmp_path / "captures", control=tmp_path / "control")
    trainer = lightning.Trainer(
        max_steps=6, accumulate_grad_batches=2, accelerator="cpu", callbacks=[callback], **dict.fromkeys(parts, False)
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4))
    assert captured == [1, 2, 3, 4, 5, 6]
    assert (tmp_path / "capture" / "trace.json.gz").is_file()


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_of_transformers(tmp_path: Path, captured: list[int]) -> None:
    transformers = pytest.importorskip("transformers", reason=WHY)
    import torch

    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16)
    data = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(64)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=6,
        report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    callback = frameworks.trainer_callback(tmp_path / "captures", control=tmp_path / "control")
    model = transformers.GPT2LMHeadModel(config)
    transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[callback]).train()
    assert captured == [1, 2, 3, 4, 5, 6]
    assert (tmp_path / "capture" / "trace.json.gz").is_file()
