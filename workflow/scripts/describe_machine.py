"""describe_machine.py FILE [--device cuda]: what a run's record says of its surroundings, before there is any run."""

import argparse
from dataclasses import asdict
from pathlib import Path

import torch

from steptrace.files import write_json
from steptrace.train.environment import collect_environment

parser = argparse.ArgumentParser()
parser.add_argument("file", type=Path)
parser.add_argument("--device", default="cpu")
options = parser.parse_args()
write_json(options.file, asdict(collect_environment(torch.device(options.device))))
