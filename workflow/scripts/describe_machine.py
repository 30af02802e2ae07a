"""describe_machine.py FILE [--device cuda]: what a run's record says of its surroundings, before there is any run."""

import argparse
from pathlib import Path

import torch

from steptrace.documents.base import write
from steptrace.train.environment import collect_environment

parser = argparse.ArgumentParser()
parser.add_argument("file", type=Path)
parser.add_argument("--device", default="cpu")
options = parser.parse_args()
write(options.file, collect_environment(torch.device(options.device)))
