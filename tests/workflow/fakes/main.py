"""Stands in for `python -m steptrace.lab` and the probe in it: leaves a record, or fails as its loss's `mode` says.

It imports little: dozens of processes do so.
"""

import argparse
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pace

from steptrace.launch.events import RecordWritten, Started, Stepped, append
from steptrace.workloads import fake_losses

#: What a rank's record has to say.
RECORD = {"rank": 0, "world_size": 1, "cwd": ".", "python": "3.11.0", "torch": "2.13.0", "cuda": None}


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--repeat", type=int)
    options = parser.parse_args(arguments)

    start = time.monotonic()
    modes = re.findall(r"^  mode: (.+)$", options.config.read_text(), re.MULTILINE)
    mode = "ok" if Path("fixed").exists() else "".join(modes)
    with Path("runs.txt").open("a") as file:
        file.write(f"train {options.config.parent}/run{options.repeat}\n")
    sys.stdout.write(f"timed {fake_losses.STEPS}/2\n")
    sys.stdout.flush()
    if mode == "raise":
        raise ValueError("the loss is not a number")
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "slow" or (mode == "slow after the first round" and options.repeat > 0):
        Path("pid.new").write_text(str(os.getpid()))
        Path("pid.new").rename("pid.txt")
        time.sleep(600)
    pace.wait()
    with Path("spans.txt").open("a") as file:
        file.write(f"train {start} {time.monotonic()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
    out = Path(json.loads(os.environ["STEPTRACE_LAUNCH"])["out"])
    (out / "rank0.json").write_text(json.dumps(RECORD))
    for event in (Started(), Stepped(), RecordWritten(0, 1, "complete")):
        append(out, event)
    return 0


if __name__ == "__main__":
    sys.exit(main())
