"""A training that is driven line by line on stdin: `python training.py WEIGHTS CAPTURES|none`.

`run N` takes N steps and answers with the steps done; `profile` and `unprofile` switch a profiler of its own on and
off; `end` saves the weights and ends.
"""

import os
import sys
import time

import torch

from steptrace.capture import Capture, Settings

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
network: torch.nn.Module = model
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    network = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
capture = None if sys.argv[2] == "none" else Capture(sys.argv[2], settings=Settings(steps=2, warmup=1))
own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
done = 0
print("ready", flush=True)  # noqa: T201
for line in sys.stdin:
    match line.split():
        case ["run", count]:
            for _ in range(int(count)):
                optimizer.zero_grad()
                network(torch.randn(4, 16)).square().mean().backward()
                optimizer.step()
                if capture is not None:
                    time.sleep(0.01)  # what a capture waits for is a time, and would be thousands of steps
                    capture.step()
            done += int(count)
        case ["profile"]:
            own.start()
        case ["unprofile"]:
            own.stop()
        case ["end"]:
            break
    print(done, flush=True)  # noqa: T201
torch.save(model.state_dict(), sys.argv[1])
del network  # before its group
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
