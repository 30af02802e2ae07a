"""Small trainings with the frameworks that people use, as they are written: `frameworks.py NAME`."""

import logging
import os
import sys
import warnings

warnings.simplefilter("ignore")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
NAME = sys.argv[1]
STEPS = 200


def lightning(_folder, devices=None):
    import lightning
    import torch
    from torch import nn

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

        def training_step(self, batch, _):
            inputs, targets = batch
            loss = nn.functional.mse_loss(self.model(inputs), targets)
            self.total = getattr(self, "total", 0.0) + loss.item()
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    data = torch.utils.data.TensorDataset(torch.randn(400, 8), torch.randn(400, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    options = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = lightning.Trainer(max_steps=STEPS, accumulate_grad_batches=2, devices=devices or ranks, **options)
    trainer.fit(Module(), loader)


def lightning_that_starts_its_ranks(folder):
    lightning(folder, devices=2)


def _train_on(loader):
    import torch

    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        for batch in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()


def stateful_loader(_folder):
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    _train_on(StatefulDataLoader(torch.randn(64, 8), batch_size=8))


def web_loader(_folder):
    import torch
    import webdataset

    class Samples(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.randn(64, 8))

    _train_on(webdataset.WebLoader(Samples(), batch_size=8))


def transformers(folder):
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    data = [{"input_ids": torch.arange(16) % 32, "labels": torch.arange(16) % 32} for _ in range(64)]
    arguments = transformers.TrainingArguments(
        output_dir=folder, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=STEPS,
        report_to=[], save_strategy="no", disable_tqdm=True, logging_steps=1000,
    )  # fmt: skip
    transformers.Trainer(model=model, args=arguments, train_dataset=data).train()


def accelerate(_folder):
    import accelerate
    import torch
    from torch import nn

    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    data = torch.utils.data.TensorDataset(torch.randn(400, 8), torch.randn(400, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    for _ in range(STEPS):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
    sys.stdout.write(f"{loss.item()}\n")


if __name__ == "__main__":
    globals()[NAME](*sys.argv[2:])
