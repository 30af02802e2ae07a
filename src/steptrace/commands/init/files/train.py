"""A training program as anyone's could be. steptrace starts it as it is: `steptrace run -- python train.py`."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=256)
parser.add_argument("--log-every", type=int, default=1, help="steps from one printed loss to the next")
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(options.seed)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step in range(options.steps):
    images = torch.randn(options.batch, 256, device=device)
    labels = torch.randint(10, (options.batch,), device=device)
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % options.log_every == 0:
        print(f"step {step + 1}: loss {loss.item():.4f}")  # the host waits for the GPU here
