"""Where a run takes place: host, processor, GPU, versions, and the state of the working directory's repository."""

import platform
import socket

import psutil
import torch

import steptrace
from steptrace import machine
from steptrace.documents.run import Environment


def collect_environment(device: torch.device) -> Environment:
    """Describe this process's surroundings; what concerns a GPU is None unless `device` is one."""
    on_gpu = device.type == "cuda"
    gpu = torch.cuda.get_device_properties(device) if on_gpu else None
    commit, dirty = machine.git_state()
    return Environment(
        host=socket.gethostname(),
        os=machine.operating_system(),
        cpu=machine.cpu_model(),
        cpu_count=machine.cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
        gpu=gpu.name if gpu else None,
        gpu_count=torch.cuda.device_count() if on_gpu else 0,
        gpu_memory_bytes=gpu.total_memory if gpu else None,
        driver=machine.driver_version() if on_gpu else None,
        cuda=torch.version.cuda,
        python=platform.python_version(),
        torch=str(torch.__version__),  # the installed package's own version may lack the build, as in 2.11.0+cu130
        steptrace=steptrace.__version__,
        git_commit=commit,
        git_dirty=dirty,
    )
