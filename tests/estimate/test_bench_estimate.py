"""`bench/estimate.py`: measured kernels become operators with their FLOP, and a table counts what lies in the bands."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("bench_estimate", ROOT / "bench" / "estimate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_kernels_are_held_against_their_bands(bench: Any, tmp_path: Path) -> None:
    ideal_ms = 1e3 * 2 * 4096**3 / (0.75 * 14.03e12)
    rows = [f"V100,linear,B=1 M=4096 N=4096 K=4096,{ms},gemm" for ms in (ideal_ms, 10 * ideal_ms, 0.1)]
    conv = "B=2 Input_Channel=64 Output_Channel=64 Kernel_Size=3 Input_Size=56 Stride=1 Padding=1"
    path = tmp_path / "kernels.csv"
    path.write_text("\n".join(["gpu,op,dims,ms,kernel", *rows, f"H100,conv,{conv},0.2,conv"]))
    kernels = bench.read_kernels(path)
    assert len(kernels) == 3  # that of 0.1 ms is mostly the time of measuring
    found = list(bench.of_kernels(kernels))
    assert [low <= ms <= high for _, op, ms, low, high in found if op == "matrix product"] == [True, False]
    assert "| V100 (kernels seen) | matrix product | 2 |" in (table := bench.table(found))
    assert "| 50% | 2.9x |" in table
    assert "| H100 (not seen) | convolution | 1 |" in table
    assert "| matrix product | arithmetic | 2 | 0.08 to 0.75 |" in bench.shares(kernels)
    assert bench.kernel("bmm", {"B": 3, "M": 4, "N": 5, "K": 6}).flop == 2 * 3 * 4 * 5 * 6
