"""bench/estimate*.py: constants are derived from measured kernels and steps, and measurements are held to bands."""

import math

import numpy as np
import pytest

from benches import bench_module
from recorded import TRACES
from steptrace.estimate.constants import shipped
from steptrace.estimate.gpus import gpu_named
from steptrace.estimate.times import kernel_seconds
from steptrace.estimate.work import Kernel

#: Beside the recorded traces.
PUBLISHED = TRACES.parent / "estimate"
#: Of an RTX PRO 6000; smaller tensors may lie in a cache.
_LARGEST_L2 = 128 * 2**20
needs_published = pytest.mark.skipif(not (PUBLISHED / "published").is_dir(), reason="no published measurements")


@pytest.fixture(scope="module")
def derive():
    return bench_module("estimate_constants")


@pytest.fixture(scope="module")
def timm():
    return bench_module("estimate_timm")


@pytest.fixture(scope="module")
def bench(derive, timm):  # noqa: ARG001  # which it imports
    return bench_module("estimate")


def _products(derive, gpu: str, share: float) -> list[object]:
    """Products of several sizes that reach a share of a GPU's arithmetic."""
    sheet = gpu_named(gpu)
    sizes = [1024 * index for index in range(2, 20)]
    kernels = [Kernel(kind="product", arithmetic="bfloat16", flop=2.0 * n**3, bytes=6.0 * n * n) for n in sizes]
    return [derive.Measured(sheet, one, one.flop / (share * 989e12)) for one in kernels]


def test_a_fit_finds_the_share_that_kernels_reach(derive):
    fit = derive.fit_kernels(_products(derive, "H100", 0.7))
    assert fit.arithmetic == pytest.approx(0.7, rel=0.05)
    assert fit.residual < 0.03
    assert fit.count == 18


def test_a_gpu_that_is_left_out_is_between_those_that_were_measured_and_less_sure(derive):
    measured = [one for gpu, share in (("H100", 0.6), ("H200", 0.8)) for one in _products(derive, gpu, share)]
    fits = derive.fits_of(measured)
    rows, left = derive.known_of(fits, {}, dict.fromkeys(fits, "kernels"))
    assert left == {}
    by_gpu = {row.get("gpu", ""): row for row in derive.constants_of(rows) if row["source"] != "judged"}
    assert by_gpu["H100"]["arithmetic"] == pytest.approx(0.6, rel=0.05)
    assert by_gpu[""]["arithmetic"] == pytest.approx(math.sqrt(0.6 * 0.8), rel=0.05)
    assert by_gpu["H100"]["spread_arithmetic"] < by_gpu["Hopper"]["spread_arithmetic"] < by_gpu[""]["spread_arithmetic"]
    without = {row.get("gpu", ""): row for row in derive.constants_of(rows, without="H100")}
    assert "H100" not in without
    assert without["Hopper"]["arithmetic"] == pytest.approx(0.8, rel=0.05)
    constants = derive.parsed(derive.constants_of(rows), {"host_us": 12, "host_spread": 0.5, "common_spread": 0.1})
    assert constants.of("product", "16", gpu_named("H100")).arithmetic == by_gpu["H100"]["arithmetic"]


def test_steps_tell_the_shares_of_their_classes(derive):
    """Of two classes in different proportions: half of one's bandwidth, all of the other's."""
    chance = np.random.default_rng(0)
    steps = []
    for number in range(40):
        ideal = chance.uniform(1e-3, 1e-1, 2)
        kinds = [("reduction", "none"), ("pooling", "none")]
        seconds = float(ideal[0] / 0.5 + ideal[1] / 1.0)
        zeros, ones = np.zeros(2), np.ones(2)
        steps.append(derive.Step(f"model {number}", seconds, [], kinds, ones, zeros, zeros, ideal))
    found, left = derive.fit_steps(steps, {})
    assert found["reduction", "none"].memory == pytest.approx(0.5, rel=0.1)
    assert found["pooling", "none"].memory == pytest.approx(1.0, rel=0.1)
    assert np.abs(left).max() < 0.05


def test_models_that_evaluate_give_no_constant(timm):
    names = [f"model{number}" for number in range(300)]
    rows = [
        timm.Row(timm.Program(mode, layout, name, 32, 224), gpu, 100.0)
        for mode, layout, gpu in timm.TABLES
        for name in names
    ]
    draw = timm.drawn(rows)
    assert [len(some) for some in draw.evaluation.values()] == [60, 60]
    assert len(draw.ratios) == 12
    evaluated = {row.program.model for some in draw.evaluation.values() for row in some}
    evaluated |= {row.program.model for pair in draw.ratios for row in pair}
    assert not evaluated & {row.program.model for row in draw.calibration}
    assert timm.drawn(list(reversed(rows))) is not None
    assert timm.drawn(rows).evaluation == draw.evaluation


def test_a_table_says_how_many_lie_inside_and_where(bench):
    rows = [
        bench.held("a", 10.0, np.linspace(0.008, 0.012, 1000)),
        bench.held("b", 30.0, np.linspace(0.008, 0.012, 1000)),
    ]
    assert [one.inside for one in rows] == [True, False]
    assert 0.4 < rows[0].place < 0.7
    cells = [cell.strip() for cell in bench.line("steps", rows).split("|")]
    assert cells[1:4] == ["steps", "2", "1 (50 %)"]


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


@needs_published
def test_published_16_bit_products_lie_in_the_bands_of_their_gpu(derive):
    """Nine of ten at least of those of 50 us and more; constants of H100, H200, A100, L40S come from such kernels."""
    kernels = derive.gemm_kernels(PUBLISHED / "published/gemm.parquet")
    for gpu in ("H100", "H200", "A100-80", "L40S"):
        some = [one for one in kernels if one.gpu.name == gpu and one.seconds > 50e-6][:300]
        low, high = np.quantile(
            kernel_seconds([one.kernel for one in some], some[0].gpu, shipped(), alone=True), (0.05, 0.95), axis=1
        )
        inside = np.mean([a <= one.seconds <= b for a, b, one in zip(low, high, some, strict=True)])
        assert inside >= 0.88, gpu
        assert np.median(high / low) < 2, gpu


@needs_published
def test_no_published_kernel_is_faster_than_the_data_sheet(derive):
    """A GPU may clock a little above it, and L2 caches of up to 128 MB hold small tensors."""
    kernels = derive.neusight_kernels(PUBLISHED / "kernels.csv")
    kernels += derive.gemm_kernels(PUBLISHED / "published/gemm.parquet")
    kernels += derive.attention_kernels(PUBLISHED / "published/attention.parquet")
    for one in kernels:
        by_flop, by_bytes = derive.ideal_seconds(one.kernel, one.gpu)
        # Winograd multiplies less often than a convolution's FLOP say.
        faster = 2.5 if one.kernel.kind.startswith("convolution") else 1.05
        assert by_flop <= faster * one.seconds
        if one.kernel.bytes > 4 * _LARGEST_L2:
            assert by_bytes <= 1.05 * one.seconds


@pytest.mark.skipif(not (TRACES / "h100_vit.json.gz").is_file(), reason="no recorded traces")
def test_the_classes_of_a_recorded_trace_are_held_against_their_bands(bench):
    (line,) = bench.of_trace(TRACES / "h100_vit.json.gz")
    assert "(H100)" in line
