"""Tiles, waves and power: what makes a kernel longer than its FLOP say, by the data sheet alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.estimate.constants import shipped
from steptrace.estimate.gpus import Gpu, gpu_named
from steptrace.estimate.gpus import shipped as shipped_gpus
from steptrace.estimate.tiles import effort as effort_of
from steptrace.estimate.times import kernel_seconds
from steptrace.estimate.traced_operator import dense
from steptrace.estimate.work import Kernel, kernels_of, on_gpu

GPUS = sorted(shipped_gpus())


def effort(kernel: Kernel, gpu: Gpu) -> float:
    return effort_of(kernel, gpu, shipped().attention)


def product(batches: int, m: int, n: int, k: int, arithmetic: str = "bfloat16") -> Kernel:
    size = 2 if "16" in arithmetic else 4
    return Kernel(
        kind="product",
        arithmetic=arithmetic,
        flop=2.0 * batches * m * n * k,
        bytes=float(size * batches * (m * k + k * n + m * n)),
        sizes=(batches, m, n, k),
        shape=f"{batches} {m} {n} {k}",
    )


lengths = st.integers(1, 20_000)


@given(st.integers(1, 64), lengths, lengths, lengths, st.sampled_from(GPUS), st.sampled_from(["float32", "bfloat16"]))
def test_nothing_takes_less_than_its_flop_and_rows_and_columns_may_change_places(batches, m, n, k, gpu, arithmetic):
    sheet = gpu_named(gpu)
    one = effort(product(batches, m, n, k, arithmetic), sheet)
    assert one >= 1
    assert one == pytest.approx(effort(product(batches, n, m, k, arithmetic), sheet))


@pytest.mark.parametrize("gpu", ["A100-80", "L40S", "RTX-PRO-6000"])
def test_one_tile_more_than_fits_at_once_takes_another_turn(gpu):
    sheet = gpu_named(gpu)
    sms = {"A100-80": 108, "L40S": 142, "RTX-PRO-6000": 188}[gpu]
    full, more = (effort(product(1, 256 * rows, 128 * 64, 8192), sheet) for rows in (sms, sms + 1))
    assert 1 <= full < 1.05
    assert more >= full
    few = effort(product(1, 256, 128 * (sms + 1), 8192), sheet)
    assert few > 1.1 * full


def test_large_products_lose_little_and_short_sums_more():
    for gpu in GPUS:
        sheet = gpu_named(gpu)
        large = effort(product(1, 16384, 16384, 16384), sheet)
        assert large < 1.05
        assert effort(product(1, 16384, 16384, 64), sheet) > 1.2 * large


def attention(heads: int, length: int, width: int, *, is_causal: bool = True, kind: str = "attention") -> Kernel:
    flop = 4.0 * heads * length**2 * width / (2 if is_causal else 1)
    return Kernel(kind=kind, arithmetic="bfloat16", flop=flop, bytes=1.0, sizes=(heads, length, length, width))


@pytest.mark.parametrize("gpu", GPUS)
def test_attention_loses_less_the_longer_the_more_and_the_wider_heads_are(gpu):
    sheet = gpu_named(gpu)

    def lost(heads: int, length: int, width: int) -> float:
        return effort(attention(heads, length, width), sheet)

    assert lost(64, 8192, 128) < lost(64, 512, 128)
    assert lost(512, 1024, 128) < lost(1, 1024, 128)
    assert lost(64, 1024, 128) < lost(64, 1024, 64)
    assert 1 < lost(2048, 16384, 128) < 1.1


def test_a_causal_block_computes_its_diagonal_and_any_block_whole_keys():
    sheet = gpu_named("A100-80")
    whole, causal = (effort(attention(4096, 512, 128, is_causal=mode), sheet) for mode in (False, True))
    begins = shipped().attention["fed by warps"].turns
    # 4 times 128 keys for each block, or 2.5 on average for half of the FLOP.
    assert causal / whole == pytest.approx(2 * (2.5 + begins) / (4 + begins))
    padded, full = (effort(attention(4096, length, 128, is_causal=False), sheet) for length in (385, 512))
    queries, keys = 512 / 385, (3.5 + begins) / 385 * 512 / (4 + begins)  # keys are padded to 448
    assert padded / full == pytest.approx(queries * keys)


def test_attention_by_warps_is_like_any_other_but_where_tensor_cores_are_fed_faster():
    shape = (8, 16, 4096, 128)
    specs = [TensorSpec(shape=shape, strides=dense(shape), dtype="bfloat16")] * 4

    def seconds(name: str, gpu: str) -> float:
        call = OperatorCalls(
            name=f"aten.{name}.default", inputs=tuple(specs[:3]), outputs=tuple(specs[3:]), is_view=False, calls=1,
            flop=4 * 128 * 4096**2 * 128, phase="forward", file=None, line=None,
        )  # fmt: skip
        sheet = gpu_named(gpu)
        kernel = on_gpu(kernels_of(call)[0], sheet)
        return float(np.median(kernel_seconds([kernel], sheet, shipped(), alone=True)))

    by_warps = "_scaled_dot_product_flash_attention"
    fastest = "_scaled_dot_product_cudnn_attention"
    for gpu in ("A100-80", "L40S", "RTX-4090", "T4"):
        assert seconds(by_warps, gpu) == pytest.approx(seconds(fastest, gpu), rel=0.03)
    for gpu in ("H100", "H200", "B200"):
        assert seconds(by_warps, gpu) > 1.4 * seconds(fastest, gpu)


def test_products_with_numbers_take_longer_than_those_with_zeros_that_were_measured():
    sheet = gpu_named("H100")
    kernel = product(1, 8192, 8192, 8192)
    alone, in_step = (kernel_seconds([kernel], sheet, shipped(), alone=alone) for alone in (True, False))
    assert 1.02 < np.median(in_step) / np.median(alone) < 1.15


def test_sizes_of_operators_are_those_of_their_matrices():
    def kernel(name, inputs, output, flop, **more):
        specs = [TensorSpec(shape=one, strides=dense(one), dtype="bfloat16") for one in (*inputs, output)]
        call = OperatorCalls(
            name=f"aten.{name}.default", inputs=tuple(specs[:-1]), outputs=tuple(specs[-1:]), is_view=False, flop=flop,
            calls=1, phase="forward", file=None, line=None, **more,
        )  # fmt: skip
        return kernels_of(call)[0]

    assert kernel("mm", [(8, 16), (16, 24)], (8, 24), 2 * 8 * 16 * 24).sizes == (1, 8, 24, 16)
    assert kernel("addmm", [(24,), (8, 16), (16, 24)], (8, 24), 2 * 8 * 16 * 24).sizes == (1, 8, 24, 16)
    assert kernel("bmm", [(4, 8, 16), (4, 16, 24)], (4, 8, 24), 2 * 4 * 8 * 16 * 24).sizes == (4, 8, 24, 16)
    heads = (2, 3, 64, 32)
    flash = "_scaled_dot_product_flash_attention"
    plain = kernel(flash, [heads] * 3, heads, 1000)
    assert (plain.sizes, plain.flop) == ((6, 64, 64, 32), 1000)
    assert kernel(flash, [heads] * 3, heads, 1000, arguments={"is_causal": True}).flop == 500


def test_a_card_of_less_power_sustains_less_and_is_less_sure():
    l40s = gpu_named("L40S")
    l4 = gpu_named("L4")
    measured, scaled = (shipped().efficiency_of("product", "16", gpu) for gpu in (l40s, l4))
    assert scaled.arithmetic < 0.8 * measured.arithmetic  # 72 W for a third of the arithmetic of 350 W
    assert scaled.spread_arithmetic > measured.spread_arithmetic
    twice = replace(l4, watts=2 * (l4.watts or 0), name="mine")
    assert shipped().efficiency_of("product", "16", twice).arithmetic == pytest.approx(2 * scaled.arithmetic, rel=0.01)
    unlimited = replace(l4, watts=10_000, name="mine")
    assert shipped().efficiency_of("product", "16", unlimited).arithmetic <= 0.95
    without = replace(l4, watts=None, name="mine")
    assert shipped().efficiency_of("product", "16", without).arithmetic == pytest.approx(measured.arithmetic, rel=0.01)


#: Kinds of kernels on tensor cores, and GPUs on which they were not measured.
UNMEASURED = [
    (kind, gpu)
    for kind in ("attention", "convolution", "convolution, channels last backward", "batched product")
    for gpu in GPUS
    if (kind, "16", gpu_named(gpu).name) not in shipped().efficiencies and gpu_named(gpu).architecture != "GeForce"
]


def test_each_kind_was_not_measured_on_some_gpu():
    assert {kind for kind, _ in UNMEASURED} >= {"attention", "convolution", "batched product"}


@pytest.mark.parametrize(("kind", "gpu"), UNMEASURED)
def test_nothing_on_tensor_cores_sustains_more_than_products_where_it_was_not_measured(kind, gpu):
    products = shipped().efficiency_of("product", "16", gpu_named(gpu))
    assert shipped().efficiency_of(kind, "16", gpu_named(gpu)).arithmetic <= products.arithmetic * 1.001


def test_what_sustained_more_than_products_where_it_was_measured_may_do_so_elsewhere():
    """On a GB200 attention reaches more of the peak than long products, whose table falls."""
    sheet = replace(gpu_named("B200"), name="mine")
    products, attention = (shipped().efficiencies[kind, "16", "Blackwell"] for kind in ("product", "attention"))
    rows = dict(shipped().efficiencies)
    rows["product", "16", "Blackwell"] = replace(products, arithmetic=attention.arithmetic / 1.1)
    found = replace(shipped(), efficiencies=rows)
    share = found.efficiency_of("attention", "16", sheet).arithmetic
    assert share == pytest.approx(1.1 * found.efficiency_of("product", "16", sheet).arithmetic, rel=0.01)


def test_what_products_limit_is_as_unsure_as_they_are():
    """A tenth of the power leaves attention a share that follows from that of products alone."""
    sheet = replace(gpu_named("H100"), name="mine", watts=70)
    products, attention = (shipped().efficiency_of(kind, "16", sheet) for kind in ("product", "attention"))
    assert attention.arithmetic == pytest.approx(products.arithmetic, rel=0.01)
    assert attention.spread_arithmetic >= products.spread_arithmetic


def test_attention_is_less_sure_the_further_power_takes_products_from_those_that_were_measured():
    near, far = (replace(gpu_named("L40S"), name="mine", watts=watts) for watts in (350, 250))
    spreads = [shipped().efficiency_of("attention", "16", gpu).spread_arithmetic for gpu in (near, far)]
    assert spreads[1] > spreads[0] > shipped().efficiencies["attention", "16", "L40S"].spread_arithmetic


def test_a_gpu_without_measurements_takes_those_of_its_family():
    a10g = gpu_named("A10G")
    any_gpu = gpu_named("MI300X")
    of_family = shipped().efficiencies["attention", "16", "fed by warps"]
    assert shipped().efficiency_of("attention", "16", a10g).memory == of_family.memory
    assert (
        shipped().efficiency_of("attention", "16", any_gpu).memory
        == shipped().efficiencies["attention", "16", ""].memory
    )


def test_the_mean_over_many_shapes_is_the_middle_of_the_class():
    """The shares were fitted to sums over many shapes."""
    gpu = gpu_named("RTX-3090")
    constants = shipped()
    kernels = [Kernel(kind="convolution", arithmetic="float16", flop=1e12, shape=str(number)) for number in range(400)]
    sure = {
        key: replace(one, spread_arithmetic=0.0)
        for key, one in constants.efficiencies.items()
        if key[0] == "convolution"
    }
    plain = replace(constants, efficiencies=sure, common_spread=0.0)
    seconds = kernel_seconds(kernels, gpu, plain).mean()
    efficiency = plain.efficiency_of("convolution", "16", gpu)
    assert efficiency.shape > 0.2
    assert seconds == pytest.approx(1e12 / 71e12 / efficiency.arithmetic, rel=0.02)


@pytest.mark.parametrize(("width", "computed"), [(40, 64), (72, 96), (80, 96), (160, 192)])
def test_attention_computes_heads_as_wide_as_its_kernels_are_compiled_for(width, computed):
    def heads(size: int) -> Kernel:
        flop = 4.0 * 256 * 4096 * 4096 * size
        return Kernel(kind="attention", arithmetic="float16", flop=flop, sizes=(256, 4096, 4096, size))

    sheet = gpu_named("A100-80")
    ratio = effort(heads(width), sheet) / effort(heads(computed), sheet)
    assert ratio == pytest.approx(computed / width)
