"""What a program is told that asks its GPU, or its build of PyTorch, is what holds on the machine of the named GPU."""

import json
import sys

import pytest
import torch
from torch import nn
from torch.backends.cuda import (
    SDPAParams,
    can_use_cudnn_attention,
    can_use_efficient_attention,
    can_use_flash_attention,
)

from steptrace.cli import main
from steptrace.estimate.driver import USUAL, driver_facts
from steptrace.estimate.gpus import Gpu, gpu_named, gpu_of_driver, shipped
from steptrace.predict import predict_syncs


def facts(name: str) -> dict[str, object]:
    with predict_syncs(driver=driver_facts(gpu_named(name))):
        properties = torch.cuda.get_device_properties(0)
        return {
            "capability": torch.cuda.get_device_capability(),
            "own bfloat16": torch.cuda.is_bf16_supported(including_emulation=False),
            "any bfloat16": torch.cuda.is_bf16_supported(),
            "tf32": torch.cuda.is_tf32_supported(),
            "memory": properties.total_memory,
            "free": torch.cuda.mem_get_info()[1],
            "name": (torch.cuda.get_device_name(0), properties.name),
            "cuda": torch.version.cuda,
            "runs": f"sm_{properties.major}{properties.minor}" in torch.cuda.get_arch_list(),
        }


def test_a_t4_and_an_h100_answer_as_they_are() -> None:
    t4 = facts("T4")
    h100 = facts("H100")
    assert (t4["capability"], t4["own bfloat16"], t4["tf32"]) == ((7, 5), False, False)
    assert t4["any bfloat16"] is True  # PyTorch counts what it emulates
    assert t4["name"] == ("Tesla T4", "Tesla T4")
    assert t4["memory"] == t4["free"] == 15 * 2**30
    assert (h100["capability"], h100["own bfloat16"], h100["tf32"]) == ((9, 0), True, True)
    assert t4["cuda"] == h100["cuda"] == "13.0"
    assert facts("V100")["cuda"] == "12.6"  # the published builds for CUDA 13 have no code for it
    assert all(one["runs"] for one in (t4, h100, facts("V100")))


@pytest.mark.parametrize("name", shipped())
def test_each_shipped_gpu_is_in_the_table_by_the_driver_s_name(name: str) -> None:
    gpu = gpu_named(name)
    driver = driver_facts(gpu)
    assert driver.name != name
    found = gpu_of_driver(driver.name)
    assert found is not None
    assert found.name == name
    assert driver.is_ampere == gpu.bf16
    assert driver.memory_bytes == int(gpu.memory_bytes)


@pytest.mark.parametrize(
    ("name", "clock_mhz", "memory_mhz"),
    [  # as deviceQuery prints them
        ("H100", 1980, 2619), ("A100-40", 1410, 1215), ("L4", 2040, 6251), ("T4", 1590, 5001), ("V100-SXM2", 1530, 877),
        ("RTX-4090", 2520, 10501), ("RTX-3090", 1695, 9751),
    ],
)  # fmt: skip
def test_clocks_are_those_of_the_gpu(name: str, clock_mhz: float, memory_mhz: float) -> None:
    with predict_syncs(driver=driver_facts(gpu_named(name))):
        properties = torch.cuda.get_device_properties(0)
    assert properties.clock_rate / 1e3 == pytest.approx(clock_mhz, rel=0.01)
    assert properties.memory_clock_rate / 1e3 == pytest.approx(memory_mhz, rel=0.01)


def test_a_gpu_that_a_person_has_added_has_its_name_and_memory() -> None:
    figures = {"fp32_tflops": 1, "half_tflops": 2, "bandwidth_gbs": 3, "memory_gb": 12, "pcie_gbs": 4}
    old, new = (driver_facts(Gpu(**figures, bf16=bf16, name="Mine")) for bf16 in (False, True))
    assert (old.name, old.memory_bytes, old.capability) == ("Mine", 12 * 2**30, (7, 5))
    assert (new.name, new.memory_bytes, new.capability) == ("Mine", 12 * 2**30, (9, 0))


def test_a_build_without_cuda_answers_as_the_build_for_it() -> None:
    with predict_syncs():
        assert torch.version.cuda is not None
        assert torch.backends.cuda.is_built()
        assert torch.backends.cudnn.is_available()
        assert torch.backends.cudnn.version() >= 90000
        assert torch.backends.cudnn.is_acceptable(torch.zeros(1, device="cuda"))
        assert not torch.backends.cudnn.is_acceptable(torch.zeros(1))
        assert torch.backends.cuda.is_flash_attention_available()
        assert nn.LSTM(2, 2).cuda()(torch.zeros(1, 1, 2, device="cuda"))[0].is_cuda


@pytest.mark.parametrize(("name", "dtype", "taken"), [
    ("H100", torch.float16, (True, True, True)),
    ("T4", torch.float16, (False, True, False)),
    ("T4", torch.bfloat16, (False, False, False)),
    ("A100-80", torch.float32, (False, True, False)),
])  # fmt: skip
def test_attention_is_fused_by_what_the_gpu_has(name: str, dtype: torch.dtype, taken: tuple[bool, ...]) -> None:
    with predict_syncs(driver=driver_facts(gpu_named(name))):
        query = torch.zeros(1, 2, 64, 32, device="cuda", dtype=dtype)
        asked = SDPAParams(query, query, query, None, 0.0, True, False)
        uses = can_use_flash_attention, can_use_efficient_attention, can_use_cudnn_attention
        assert tuple(can_use(asked) for can_use in uses) == taken
        assert nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).is_cuda


PROGRAM = """
import sys, torch
layer = torch.nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(9):
    loss = layer(torch.zeros(1, 2, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    if torch.cuda.get_device_capability() < (8, 0):
        loss.item()
"""


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize(("options", "gpu", "syncs"), [
    ([], USUAL, 0), (["--gpu", "T4"], "T4", 1), (["--gpu", "L4,T4"], "L4", 0),
])  # fmt: skip
def test_a_command_is_told_of_the_first_gpu_that_is_named(capfd, tmp_path, options, gpu: str, syncs: int) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    assert main(["predict", "--json", *options, "--", sys.executable, str(tmp_path / "train.py")]) == 0
    prediction = json.loads(capfd.readouterr().out)
    assert (prediction["gpu"], prediction["total"]) == (gpu, syncs)
