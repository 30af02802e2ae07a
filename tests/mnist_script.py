"""A script with the training loop of pytorch/examples' mnist/main.py at its lines, on random digits."""

from pathlib import Path

_HEAD = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
torch.manual_seed(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
digits = TensorDataset(torch.rand(4096, 1, 28, 28), torch.randint(0, 10, (4096,)))
train_loader = DataLoader(digits, batch_size=args.batch_size, pin_memory=torch.cuda.is_available())
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(676, 10)).to(device)
optimizer = torch.optim.Adadelta(model.parameters())
"""
_LOOP = """for batch_idx, (data, target) in enumerate(train_loader):
    {copies}
    optimizer.zero_grad()
    output = model(data)
    loss = nn.functional.cross_entropy(output, target)
    loss.backward()
    optimizer.step()
    if batch_idx % 10 == 0:
        print("Train Epoch: {{:.0f}}% {{:.6f}}".format(

            100. * batch_idx / len(train_loader), loss.item()))
"""


def write_mnist(path: Path, copies: str = "data, target = data.to(device), target.to(device)") -> None:
    """Write the script; `copies` is its line 39, which copies a batch to the device."""
    lines = _HEAD.splitlines()
    path.write_text("\n".join([*lines, *[""] * (37 - len(lines)), _LOOP.format(copies=copies.strip())]))
