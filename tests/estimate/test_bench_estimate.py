"""`bench/estimate.py`: measured kernels become operators with their FLOP, and a table counts what lies in the bands."""

import pytest

from benches import bench_module
from recorded import TRACES

#: Beside the recorded traces.
KERNELS = TRACES.parent / "estimate" / "kernels.csv"


@pytest.fixture(scope="module")
def shares():
    return bench_module("estimate_shares")


@pytest.fixture(scope="module")
def bench(shares):  # noqa: ARG001  # which it imports
    return bench_module("estimate")


def test_kernels_are_held_against_their_bands(bench, shares, tmp_path):
    ideal_ms = 1e3 * 2 * 4096**3 / (0.75 * 14.03e12)
    rows = [f"V100,linear,B=1 M=4096 N=4096 K=4096,{ms},gemm" for ms in (ideal_ms, 10 * ideal_ms, 0.1)]
    conv = "B=2 Input_Channel=64 Output_Channel=64 Kernel_Size=3 Input_Size=56 Stride=1 Padding=1"
    path = tmp_path / "kernels.csv"
    path.write_text("\n".join(["gpu,op,dims,ms,kernel", *rows, f"H100,conv,{conv},0.2,conv"]))
    kernels = shares.read_kernels(path)
    assert len(kernels) == 3  # that of 0.1 ms is mostly the time of measuring
    estimated = list(bench.of_kernels(kernels))
    assert [low <= ms <= high for _, op, ms, low, high in estimated if op == "matrix product"] == [True, False]
    assert "| V100 (kernels seen) | matrix product | 2 |" in (table := bench.table(estimated))
    assert "| 50% | 1.8x |" in table
    assert "| H100 (not seen) | convolution" in table
    assert shares.operator("bmm", {"B": 3, "M": 4, "N": 5, "K": 6}).flop == 2 * 3 * 4 * 5 * 6


def test_a_band_reaches_as_far_as_gpus_lie_from_each_other(shares):
    alike = {gpu: [(0.8, 1.0)] for gpu in ("V100", "T4", "P100")}
    assert shares.bands(alike, part=0.9) == ((0.8, 0.8), (0.8, 0.8))
    # The middle of all is 0.4; the slow one lies at half of the others, each of those at sqrt(2) of the other two.
    apart = {
        "V100": [(0.4 * 2 ** (1 / 3), 1.0)],
        "T4": [(0.4 * 2 ** (1 / 3), 1.0)],
        "P100": [(0.4 / 2 ** (2 / 3), 1.0)],
    }
    assert shares.bands(apart, part=0.9)[1] == (0.2, pytest.approx(0.4 * 2**0.5, abs=0.006))


@pytest.mark.skipif(not KERNELS.is_file(), reason="no published kernels beside the recorded traces")
def test_the_shipped_shares_are_those_derived(shares):
    assert shares.toml(shares.read_kernels(KERNELS)) == shares.SHIPPED.read_text(encoding="utf-8")


def test_a_cast_to_the_same_type_launches_nothing(bench, tmp_path):
    columns = "op,target,_input_nodes,meta,input_shapes,input_contiguous,output_shape,dtype,Name"
    rows = [
        'placeholder,x,{},{},[],[],"(2, 4)",torch.float32,x',
        'call_method,to,{x: None},{},"[[2, 4]]",[True],"(2, 4)",torch.float32,same',
        'call_method,to,{x: None},{},"[[2, 4]]",[True],"(2, 4)",torch.int64,other',
        'call_method,contiguous,{x: None},{},"[[2, 4]]",[True],"(2, 4)",torch.float32,dense',
        'call_method,contiguous,{x: None},{},"[[2, 4]]",[False],"(2, 4)",torch.float32,copy',
    ]
    path = tmp_path / "net.csv"
    path.write_text("\n".join([columns, *rows]))
    assert len(list(bench._operators(path, 1, train=False))) == 2


@pytest.mark.skipif(not (TRACES / "h100_vit.json.gz").is_file(), reason="no recorded traces")
def test_the_classes_of_a_recorded_trace_are_held_against_their_bands(bench):
    rows = list(bench.of_trace(TRACES / "h100_vit.json.gz"))
    assert {gpu for gpu, *_ in rows} == {"H100"}
    assert {what for _, what, *_ in rows} >= {"h100_vit: elementwise", "h100_vit: matrix product, 16 bit or TF32"}
    assert all(0 < low < high and ms > 0 for *_, ms, low, high in rows)
