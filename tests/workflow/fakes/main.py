"""Stands in for steptrace.train.main: leaves a run's files at once, or fails as its loss's `mode` says."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import steptrace.workloads.fake_losses
import yaml

parser = argparse.ArgumentParser()
parser.add_argument("--config", type=Path)
parser.add_argument("--out", type=Path)
parser.add_argument("--repeat", type=int)
options = parser.parse_args()

start = time.monotonic()
config = yaml.safe_load(options.config.read_text())
mode = "ok" if Path("fixed").exists() else config["loss"].get("mode", "ok")
with Path("runs.txt").open("a") as file:
    file.write(f"train {options.out}\n")
sys.stdout.write(f"timed {steptrace.workloads.fake_losses.STEPS}/2\n")
sys.stdout.flush()
if mode == "raise":
    raise ValueError("the loss is not a number")
if mode == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "oom":
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB")
if mode == "slow" or (mode == "slow after the first round" and options.repeat > 0):
    Path("pid.txt").write_text(str(os.getpid()))
    time.sleep(600)
if mode == "half a second":
    time.sleep(0.5)
with Path("spans.txt").open("a") as file:
    file.write(f"train {start} {time.monotonic()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
(options.out / "run.json").write_text("{}")
