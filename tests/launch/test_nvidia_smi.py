"""`nvidia-smi` answers for the virtual GPU where the machine has none."""

import subprocess

import pytest

from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import gpu_named
from steptrace.launch.nvidia_smi import add_nvidia_smi


@pytest.fixture
def asked(tmp_path):
    environment = {"PATH": "/bin"}
    add_nvidia_smi(tmp_path / "it's here", environment, driver_facts(gpu_named("L4")), 2)
    return lambda *options: (
        subprocess.run(["nvidia-smi", *options], env=environment, text=True, capture_output=True, check=True).stdout
    )


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--query-gpu=name,memory.total", "--format=csv,noheader"], "NVIDIA L4, 23040 MiB\n" * 2),
        (["--query-gpu=memory.used, utilization.gpu", "--format=csv,nounits,noheader", "-i", "1"], "0, 0\n"),
        (["--query-gpu=index,clocks.sm", "--format", "csv", "--id=0"], "index, clocks.sm\n0, [N/A]\n"),
        (["--query-gpu=memory.free", "--format=csv", "-i", "0"], "memory.free [MiB]\n23040 MiB\n"),
        (["--query-gpu=index", "--format=csv,noheader", "-i", "GPU-00000000-0000-0000-0000-000000000001"], "1\n"),
        (["--query-compute-apps=pid,name", "--format=csv,noheader"], ""),
    ],
)
def test_it_answers_a_query(asked, options, printed):
    assert asked(*options) == printed


def test_it_lists_the_gpus(asked):
    assert [line.partition(" (")[0] for line in asked("-L").splitlines()] == ["GPU 0: NVIDIA L4", "GPU 1: NVIDIA L4"]
    assert asked().count("NVIDIA L4") == 2


def test_a_program_finds_the_free_memory_of_each_gpu(asked):
    """As `nvidia-smi -q -d Memory | grep -A4 GPU | grep Free` does."""
    lines = asked("-q", "-d", "Memory").splitlines()
    near = [
        line for at, line in enumerate(lines) if any(before.startswith("GPU") for before in lines[max(at - 4, 0) : at])
    ]
    assert [int(line.split()[2]) for line in near if "Free" in line] == [23040, 23040]


def test_that_of_the_machine_stays(tmp_path):
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    environment = {"PATH": str(tmp_path)}
    add_nvidia_smi(tmp_path / "new", environment, driver_facts(gpu_named("L4")), 1)
    assert environment == {"PATH": str(tmp_path)}
