"""Where a run takes place: host, processor, GPU, versions, and the state of the working directory's repository."""

import platform

import torch

from steptrace import machine
from steptrace.documents.run import Environment


def collect_environment(device: torch.device) -> Environment:
    """Describe this process's surroundings; what concerns a GPU is None unless `device` is one."""
    gpus = None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        gpus = machine.Gpus(properties.name, properties.total_memory, torch.cuda.device_count())
    # The installed package's own version may lack the build, as in 2.11.0+cu130.
    python, version = platform.python_version(), str(torch.__version__)
    return machine.environment(python=python, torch=version, cuda=torch.version.cuda, gpus=gpus)
