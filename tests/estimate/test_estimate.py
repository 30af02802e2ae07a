"""A step on a GPU that is not there: the arithmetic of its bands, what limits it, what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest

from steptrace.documents.estimate import SYNC, DeclaredCost, Estimate, OperatorCalls, TensorSpec
from steptrace.errors import ConfigError
from steptrace.estimate.constants import shipped
from steptrace.estimate.cudnn import computed_flop
from steptrace.estimate.drawn import FollowedStep
from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import gpu_named
from steptrace.estimate.gpus import shipped as shipped_gpus
from steptrace.estimate.kernel_classes import kind_of
from steptrace.estimate.launches import launches
from steptrace.estimate.queue import GraphLaunch
from steptrace.estimate.room import largest_batch
from steptrace.estimate.step import _queue, estimate_step, estimate_variants
from steptrace.estimate.times import kernel_seconds
from steptrace.estimate.work import Kernel, converted_bytes, kernels_of, moved_bytes
from steptrace.words.estimate import reason_words


def tensor(*shape: int, dtype: str = "float32") -> TensorSpec:
    strides = [math.prod(shape[index + 1 :]) for index in range(len(shape))]
    return TensorSpec(shape=shape, strides=tuple(strides), dtype=dtype)


def call(name: str, inputs: list[TensorSpec], outputs: list[TensorSpec], **more: object) -> OperatorCalls:
    given = {"is_view": False, "flop": 0, "calls": 1, "phase": "forward", "file": "train.py", "line": 3, **more}
    return OperatorCalls(name=name, inputs=tuple(inputs), outputs=tuple(outputs), **given)


def add(elements: int, **more: object) -> OperatorCalls:
    return call("aten.add.Tensor", [tensor(elements)] * 2, [tensor(elements)], **more)


def product(size: int, dtype: str = "float32", **more: object) -> OperatorCalls:
    matrix = tensor(size, size, dtype=dtype)
    return call("aten.mm.default", [matrix] * 2, [matrix], flop=2 * size**3, **more)


def estimate(operators: list[OperatorCalls], gpu: str, **more: object) -> Estimate:
    return estimate_step(FollowedStep(operators, **more), gpu_named(gpu))


#: Nothing says how long an operator takes that no rule knows.
UNCOVERED = call("aten._linalg_solve_ex.default", [tensor(10**7)], [tensor(10**7)])
#: Of a custom operator only its tensors' bytes are known.
CUSTOM = call("mylib.kernel.default", [tensor(10**7)], [tensor(10**7)])


def test_a_large_product_is_limited_by_arithmetic_and_its_band_holds_the_published_constants():
    result = estimate([product(8192, calls=3)], "H100", steps=3)
    assert result.limited_by == "arithmetic"
    assert result.gpu_ms[0] < 2 * 8192**3 / (0.75 * 66.9e9) < result.gpu_ms[1]
    assert result.step_ms == result.gpu_ms
    assert (result.launches, result.covered_pct) == (1, 100)
    assert result.gpu_busy_pct[1] == 100


def test_a_large_sum_is_limited_by_memory():
    result = estimate([add(10**8)], "A100-80")
    assert result.limited_by == "memory"
    assert result.gpu_ms[0] < 1.2e9 / (0.8 * 1935e6) < result.gpu_ms[1]


def test_small_kernels_are_limited_by_launches():
    result = estimate([add(64, calls=1000)], "H100")
    assert result.limited_by == "launches"
    assert result.step_ms == result.host_ms == pytest.approx((5.2, 43.6), rel=0.05)


def test_one_sync_at_a_step_s_end_adds_only_what_is_still_queued():
    """Of many long kernels nearly all are still queued then, of short ones hardly any."""
    for one in (add(64, calls=1000), product(4096, calls=200)):
        plain = estimate([one], "H100")
        synced = estimate([one], "H100", syncs=1)
        for end in (0, 1):
            assert plain.step_ms[end] <= synced.step_ms[end] <= 1.02 * plain.step_ms[end] + 0.05


def test_syncs_limit_where_each_lets_the_host_and_the_gpu_wait_for_each_other():
    kernels = [add(3 * 10**6, line=line) for line in range(100)]
    queue = [place if step == 0 else -1 for place in range(100) for step in (0, 1)]
    result = estimate(kernels, "H100", syncs=100, queue=queue)
    apart = estimate(kernels, "H100", syncs=1)
    assert result.limited_by == "syncs"
    assert result.step_ms[0] > 1.2 * apart.step_ms[0]


def images(*shape: int, dtype: str, last: bool = False) -> TensorSpec:
    _, c, h, w = shape
    return TensorSpec(shape=shape, strides=(c * h * w, 1, c * w, c) if last else (c * h * w, h * w, w, 1), dtype=dtype)


@pytest.mark.parametrize(
    ("size", "dtype", "converted"), [(3, "bfloat16", True), (3, "float32", False), (1, "bfloat16", False)]
)
def test_images_that_are_not_channels_last_are_converted_for_tensor_cores(size, dtype, converted):
    given, made = (images(1024, c, 32, 32, dtype=dtype) for c in (64, 256))
    weight = images(256, 64, size, size, dtype=dtype)
    kernels = kernels_of(call("aten.convolution.default", [given, weight], [made], flop=1000))
    moved = 2 * 1024 * 32 * 32 * (64 + 256) * 2
    assert [k.bytes for k in kernels if k.kind == "layout conversion"] == ([moved] if converted else [])


def test_a_depthwise_convolution_is_not_converted():
    given = images(8, 64, 32, 32, dtype="float16")
    weight = images(64, 1, 3, 3, dtype="float16")
    (kernel,) = kernels_of(call("aten.convolution.default", [given, weight], [given], flop=1000))
    assert (kernel.kind, kernel.format) == ("depthwise convolution", "32")


def test_images_of_the_weights_shape_are_converted_as_others_are():
    square = images(64, 64, 3, 3, dtype="bfloat16")
    forward = call("aten.convolution.default", [square, square], [square])
    backward = call("aten.convolution_backward.default", [square] * 3, [square])
    size = 2 * 64 * 64 * 3 * 3
    assert converted_bytes(forward, "16") == 2 * 2 * size
    assert converted_bytes(backward, "16") == 2 * 4 * size


def convolution(images: TensorSpec, weight: TensorSpec, *, backward: bool = False) -> OperatorCalls:
    """One of unpadded stride 1, or its backward pass for images and weight."""
    sizes = (size - kernel + 1 for size, kernel in zip(images.shape[2:], weight.shape[2:], strict=True))
    made = tensor(images.shape[0], weight.shape[0], *sizes)
    flop = 2 * images.shape[0] * math.prod(made.shape[2:]) * math.prod(weight.shape)
    if backward:
        return call("aten.convolution_backward.default", [made, images, weight], [images, weight], flop=2 * flop)
    return call("aten.convolution.default", [images, weight], [made], flop=flop)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("batch", [2, 256])
@pytest.mark.parametrize(
    ("channels", "weight", "arithmetic", "kind"),
    [
        (64, (64, 64), "32", "convolution"),
        (3, (64, 3), "32", "convolution, one side under 32 channels"),
        (64, (10, 64), "32", "convolution, one side under 32 channels"),
        (10, (10, 10), "32", "convolution, both sides under 32 channels"),
        (128, (128, 1), "32", "depthwise convolution"),
        (128, (128, 16), "32", "grouped convolution"),
        (128, (128, 64), "32", "convolution"),  # two groups that fill tiles
        (128, (128, 64), "16", "grouped convolution"),
        (64, (64, 64), "16", "convolution"),
        (3, (64, 3), "tf32", "convolution, one side under 32 channels"),
    ],
)
def test_the_class_of_a_convolution_is_that_of_its_channels_whatever_the_batch(
    channels, weight, arithmetic, kind, batch, *, backward
):
    one = convolution(tensor(batch, channels, 40, 40), tensor(*weight, 3, 3), backward=backward)
    assert kind_of(one, arithmetic) == kind + (" backward" if backward else "")


def test_channels_last_is_a_class_of_its_own_on_tensor_cores():
    last = convolution(images(2, 64, 40, 40, dtype="float16", last=True), tensor(64, 64, 3, 3))
    assert kind_of(last, "16") == "convolution, channels last"
    assert kind_of(last, "32") == "convolution"


def test_few_channels_are_computed_as_a_whole_tile():
    images = tensor(8, 16, 40, 40)
    weight = tensor(8, 16, 3, 3)
    forward, backward = (convolution(images, weight, backward=backward) for backward in (False, True))
    assert computed_flop(forward) == forward.flop * 32 / 8
    assert computed_flop(backward) == backward.flop * (32 / 16 + 32 / 8) / 2
    times = [kernel_seconds(kernels_of(one), gpu_named("H100"), shipped()).sum(axis=0) for one in (forward, backward)]
    assert np.median(times[1]) > np.median(times[0])


def test_convolutions_are_in_tf32_unless_the_program_switches_it_off():
    given = tensor(64, 256, 56, 56)
    weight = tensor(256, 256, 3, 3)
    made = tensor(64, 256, 54, 54)
    of_products = call("aten.convolution.default", [given, weight], [made], flop=2 * 64 * 54 * 54 * 256 * 256 * 9)
    allowed, not_allowed = (estimate([of_products], "H100", tf32_convolutions=tf32) for tf32 in (True, False))
    assert not_allowed.gpu_ms[0] > 1.5 * allowed.gpu_ms[0]
    assert not_allowed.gpu_ms[1] > 1.5 * allowed.gpu_ms[1]


def test_operators_of_one_line_without_a_rule_are_one_row():
    sizes = (10**7, 2 * 10**7)
    uncovered = [replace(UNCOVERED, inputs=(tensor(size),), outputs=(tensor(size),), line=7) for size in sizes]
    (missing,) = estimate([*uncovered, add(64)], "H100", steps=2).not_estimated
    assert (missing.calls, missing.line) == (1, 7)
    assert missing.share_pct > 99


def test_without_rules_for_most_of_the_work_there_is_no_figure_but_the_reason():
    result = estimate([UNCOVERED, add(1000)], "H100")
    assert (result.step_ms, result.gpu_ms, result.gpu_busy_pct, result.limited_by) == (None,) * 4
    assert result.covered_pct < 90
    assert result.without_time == "too_little_covered"
    (missing,) = result.not_estimated
    assert (missing.code, missing.bandwidth_pct) == ("no_measurements", None)
    assert UNCOVERED.name.removesuffix(".default") in reason_words(result)
    assert (missing.name, missing.line) == (UNCOVERED.name, 3)
    assert missing.share_pct == pytest.approx(100 - result.covered_pct, abs=0.1)


def test_a_small_uncovered_share_is_listed_beside_the_figure():
    result = estimate([UNCOVERED, product(16384)], "H100")
    assert result.step_ms is not None
    assert [missing.name for missing in result.not_estimated] == [UNCOVERED.name]


def test_a_step_with_compiled_code_has_no_time_but_an_upper_bound():
    eager = estimate([product(4096)], "H100", peak_memory_bytes=2**30)
    compiled = estimate([product(4096)], "H100", peak_memory_bytes=2**30, compiled=[("train.py", 3), ("train.py", 3)])
    assert compiled.uncompiled_ms == eager.step_ms
    times = (compiled.step_ms, compiled.gpu_ms, compiled.host_ms, compiled.gpu_busy_pct, compiled.limited_by)
    assert (times, compiled.launches, compiled.covered_pct) == ((None,) * 5, None, 0)
    assert [(one.name, one.line) for one in compiled.not_estimated] == [("torch.compile", 3)]
    assert compiled.fits
    assert (eager.without_time, reason_words(eager)) == (None, "")
    assert compiled.without_time == "compiled_code"
    assert [missing.code for missing in compiled.not_estimated] == ["unknown_kernels"]
    assert "train.py:3" in reason_words(compiled)


def test_a_copy_from_the_host_is_assumed_and_not_covered_nor_missing():
    copy = call("aten._to_copy.default", [], [tensor(10**7)], host=tensor(10**7))
    result = estimate([copy, add(10**7)], "H100")
    alone = estimate([add(10**7)], "H100")
    assert (result.covered_pct, result.not_estimated) == (100, ())
    assert [one.name for one in result.assumed] == ["aten._to_copy.default"]
    assert result.assumed[0].share_pct > 90
    assert result.gpu_ms[0] > alone.gpu_ms[0] + 1e3 * 4e7 / 64e9
    assert result.assumed[0].code == "pcie"
    low, high = result.assumed[0].bandwidth_pct
    assert 0 < low < high <= 100
    assert estimate([copy], "H100").without_time == "only_copies"
    assert estimate([], "H100").without_time == "nothing_ran"


def test_the_band_of_many_shapes_is_narrower_than_that_of_one():
    one, many = (
        estimate([product(4096 + 64 * index, "float16", calls=64 // count) for index in range(count)], "L40S")
        for count in (1, 64)
    )
    assert many.gpu_ms[1] / many.gpu_ms[0] < 0.97 * one.gpu_ms[1] / one.gpu_ms[0]


def test_a_custom_operator_without_a_declared_cost_is_assumed_with_a_wide_band():
    result = estimate([CUSTOM], "H100")
    assert [(one.name, one.code) for one in result.assumed] == [(CUSTOM.name, "custom_operator")]
    assert not result.not_estimated
    at_full_bandwidth = 1e3 * 8e7 / 3350e9
    assert 0.7 * at_full_bandwidth < result.gpu_ms[0] < 1.5 * at_full_bandwidth
    assert result.gpu_ms[1] > 20 * at_full_bandwidth
    assert result.tested_pct == 0


def test_a_declared_cost_stands_in_for_all_that_is_assumed():
    cost = DeclaredCost(flop=67e9, bytes=1.0, launches=3, arithmetic="float32")
    result = estimate([replace(CUSTOM, cost=cost)], "H100")
    assert 1.0 < result.gpu_ms[0] < result.gpu_ms[1] < 20.0
    assert (result.launches, result.limited_by) == (3, "arithmetic")
    (declared,) = result.assumed
    assert declared.code == "declared_cost"
    assert declared.arithmetic_pct[0] < declared.bandwidth_pct[0]
    assert estimate([replace(CUSTOM, cost=DeclaredCost(launches=0))], "H100").launches == 0


def test_collectives_are_launched_but_in_no_time_of_the_gpu():
    """However large: how long they take depends on the link and on other ranks."""
    reduces = call("c10d.allreduce_.default", [tensor(10**9)], [tensor(10**9)])
    alone = estimate([product(4096)], "H100")
    of_rank = estimate([product(4096), reduces], "H100")
    assert (of_rank.gpu_ms, of_rank.covered_pct, of_rank.not_estimated) == (alone.gpu_ms, 100, ())
    assert of_rank.launches > alone.launches


def test_bfloat16_has_no_figure_on_a_v100():
    without = estimate([product(4096, "bfloat16")], "V100")
    assert (without.step_ms, [missing.code for missing in without.not_estimated]) == (None, ["no_peak"])
    assert estimate([product(4096, "float16")], "V100").step_ms is not None


def test_a_16_bit_product_whose_size_is_no_multiple_of_8_may_be_many_times_slower():
    aligned, odd = (estimate([product(size, "bfloat16")], "H100").gpu_ms for size in (4096, 4097))
    assert odd[1] > 4 * aligned[1]
    assert odd[0] > aligned[0]


def test_what_makes_views_or_only_reserves_memory_launches_nothing():
    assert launches(call("aten.view.default", [tensor(4)], [tensor(2, 2)], is_view=True)) == 0
    assert launches(call("aten.empty_like.default", [tensor(4)], [tensor(4)])) == 0


@pytest.mark.parametrize(
    ("name", "lists", "sizes", "expected"),
    [
        ("aten._foreach_add_.List", 2, [10] * 448, 1),
        ("aten._foreach_add_.List", 2, [10] * 449, 2),
        ("aten._foreach_mul_.Scalar", 1, [10] * 770, 1),
        ("aten._foreach_mul_.ScalarList", 1, [10] * 672, 1),
        ("aten._foreach_mul_.ScalarList", 1, [10] * 673, 2),
        ("aten._foreach_addcdiv_.ScalarList", 3, [10] * 337, 2),
        ("aten._foreach_add.List", 2, [10] * 337, 2),
        ("aten._foreach_neg.default", 1, [10] * 449, 2),
        ("aten._foreach_lerp.Scalar", 2, [10] * 336, 1),
        ("aten._foreach_max.default", 1, [10] * 771, 4),
        ("aten._foreach_mul_.Scalar", 1, [2240 * 65536], 1),
        ("aten._foreach_mul_.Scalar", 1, [2241 * 65536], 2),
    ],
)
def test_launches_of_operators_on_lists(name, lists, sizes, expected):
    assert launches(call(name, [tensor(size) for size in sizes] * lists, [])) == expected


def sparse(shape: tuple[int, ...], values: TensorSpec, dimensions: int = 1) -> list[TensorSpec]:
    """A sparse tensor as a prediction records it: itself, its indices and its values."""
    indices = tensor(dimensions, values.shape[0], dtype="int64")
    return [TensorSpec(shape=shape, strides=(), dtype=values.dtype), indices, values]


HEADS = TensorSpec(shape=(2, 4, 9, 8), strides=(288, 8, 32, 1), dtype="float32")
HEADS_16 = TensorSpec(shape=HEADS.shape, strides=HEADS.strides, dtype="float16")
TRANSPOSED = TensorSpec(shape=(4, 2), strides=(1, 4), dtype="int64")
SLICE = TensorSpec(shape=(2, 6, 6), strides=(72, 6, 1), dtype="float32")
EXPANDED = TensorSpec(shape=(8, 128), strides=(0, 0), dtype="float32")
IMAGES = TensorSpec(shape=(8, 16, 32, 32), strides=(16384, 1, 512, 16), dtype="float32")
IMAGES_16 = TensorSpec(shape=IMAGES.shape, strides=IMAGES.strides, dtype="bfloat16")


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "expected"),
    [
        ("aten.sum.default", [tensor(100_000)], [tensor()], 1),
        ("aten.sum.default", [tensor(200_000)], [tensor()], 2),
        ("aten.sum.default", [tensor(8, dtype="bool")], [tensor(dtype="int64")], 2),
        ("aten.sum.dim_IntList", [tensor(1024, 96)], [tensor(1, 96)], 1),
        ("aten.sum.dim_IntList", [tensor(1024, 512)], [tensor(1, 512)], 2),
        ("aten.sum.dim_IntList", [tensor(8192, 768)], [tensor(8192)], 1),
        ("aten.sum.dim_IntList", [tensor(32, 3, 224, 224)], [tensor(3)], 2),
        ("aten.sum.dim_IntList", [tensor(8, 512, 7, 7)], [tensor(512)], 1),
        ("aten.sort.default", [tensor(4, 4096)], [tensor(4, 4096)] * 2, 5),
        ("aten.sort.default", [tensor(10**6)], [tensor(10**6)] * 2, 14),
        ("aten.sort.default", [tensor(10**6, dtype="int64")], [tensor(10**6)] * 2, 22),
        ("aten.topk.default", [tensor(4, 1000)], [tensor(4, 3)] * 2, 2),
        ("aten._unique2.default", [tensor(10**5)], [tensor(9), tensor(0), tensor(0)], 15),
        ("aten._unique2.default", [tensor(8)], [tensor(9), tensor(8), tensor(0)], 9),
        ("aten.embedding_dense_backward.default", [tensor(3072, 8), tensor(3072, dtype="int64")], [tensor(9, 8)], 2),
        (
            "aten.embedding_dense_backward.default",
            [tensor(8192, 8), tensor(8192, dtype="int64")],
            [tensor(50257, 8)],
            19,
        ),
        ("aten.nonzero.default", [tensor(4, 2, dtype="bool")], [tensor(0, 2, dtype="int64")], 5),
        ("aten.nonzero.default", [tensor(0, dtype="bool")], [tensor(0, 1, dtype="int64")], 0),
        ("aten.cat.default", [tensor(8)] * 129, [tensor(1032)], 2),
        ("aten.addmm.default", [tensor(8), tensor(4, 4), tensor(4, 8)], [tensor(4, 8)], 1),
        ("aten.addmm.default", [tensor(4, 8), tensor(4, 4), tensor(4, 8)], [tensor(4, 8)], 2),
        ("aten.native_batch_norm.default", [tensor(8, 4, 9, 9)] + [tensor(4)] * 4, [tensor(8, 4, 9, 9)], 1),
        ("aten.native_batch_norm.default", [tensor(8, 4)] + [tensor(4)] * 4, [tensor(8, 4)], 3),
        ("aten.native_batch_norm.default", [tensor(2048, 64)] + [tensor(64)] * 4, [tensor(2048, 64)], 4),
        ("aten.native_batch_norm_backward.default", [tensor(8, 4)] * 2 + [tensor(4)] * 5, [tensor(8, 4)], 2),
        ("aten.native_batch_norm_backward.default", [tensor(8, 4)] * 2 + [tensor(4)] * 4, [tensor(8, 4)], 3),
        ("aten.native_batch_norm_backward.default", [tensor(8, 4, 9)] * 2 + [tensor(4)] * 5, [tensor(8, 4, 9)], 1),
        ("aten.native_batch_norm_backward.default", [SLICE, tensor(2, 6, 6)] + [tensor(6)] * 5, [tensor(2, 6, 6)], 2),
        ("aten.native_batch_norm_backward.default", [tensor(2048, 64)] * 2 + [tensor(64)] * 5, [tensor(2048, 64)], 3),
        ("aten.max_pool2d_with_indices_backward.default", [IMAGES] * 3, [IMAGES], 2),
        ("aten.max_pool2d_with_indices_backward.default", [tensor(8, 16, 32, 32), IMAGES, IMAGES], [IMAGES], 3),
        ("aten.native_batch_norm_backward.default", [IMAGES_16] * 2 + [tensor(16)] * 5, [IMAGES_16], 3),
        ("aten.convolution.default", [tensor(8, 16, 32, 32), tensor(8, 16, 3, 3)], [tensor(8, 8, 30, 30)], 1),
        ("aten.convolution.default", [IMAGES, tensor(8, 16, 3, 3)], [tensor(8, 8, 30, 30)], 2),
        ("aten.convolution.default", [IMAGES, tensor(8, 16, 1, 1)], [tensor(8, 8, 32, 32)], 1),
        ("aten._foreach_div_.List", [tensor(8), tensor(8), tensor(), tensor()], [], 2),
        ("aten.mse_loss.default", [tensor(8)] * 2, [tensor()], 2),
        ("aten.mse_loss.default", [tensor(8)] * 2, [tensor(8)], 1),
        ("aten._scaled_dot_product_efficient_attention_backward.default", [tensor(2, 4, 9, 8)] * 4, [HEADS] * 3, 5),
        ("aten._scaled_dot_product_efficient_attention_backward.default", [HEADS_16] * 4, [HEADS_16] * 3, 2),
        ("aten.embedding.default", [tensor(9, 4), TRANSPOSED], [tensor(4, 2, 4)], 2),
        ("aten.convolution_backward.default", [SLICE, tensor(2, 3, 8), tensor(6, 3, 3)], [tensor(2, 3, 8)] * 2, 4),
        ("aten.convolution_backward.default", [SLICE, tensor(2, 3, 8), tensor(6, 3, 3)], [tensor(6, 3, 3)], 2),
        ("aten.convolution_backward.default", [SLICE, tensor(2, 6, 8), tensor(6, 1, 3)], [tensor(2, 6, 8)] * 2, 3),
        ("aten.convolution_backward.default", [SLICE, tensor(2, 3, 4), tensor(3, 6, 3)], [tensor(2, 3, 4)] * 2, 3),
        (
            "aten.convolution_backward.default",
            [IMAGES, tensor(8, 3, 34, 34), tensor(16, 3, 3, 3)],
            [tensor(8, 3, 34, 34), tensor(16, 3, 3, 3)],
            3,
        ),
        ("aten.multinomial.default", [tensor(4, 8)], [tensor(4, 1)], 13),
        ("aten.masked_fill.Tensor", [tensor(8), tensor(8, dtype="bool"), tensor()], [tensor(8)], 3),
        ("aten.masked_fill.Tensor", [tensor(8), tensor(8, dtype="bool")], [tensor(8)], 2),
        ("aten._fft_r2c.default", [tensor(64)], [tensor(33, dtype="complex64")], 1),
        ("aten._grouped_mm.default", [tensor(2, 8, 8)] * 2, [tensor(2, 8, 8)], 1),
        ("aten._grouped_mm.default", [tensor(8, 8), tensor(4, 8, 8), tensor(4, dtype="int32")], [tensor(8, 8)], 5),
        ("aten._grouped_mm.default", [tensor(2, 8, 8, dtype="bfloat16")] * 2, [tensor(2, 8, 8)], 2),
        ("aten._embedding_bag_backward.default", [tensor(2, 4), tensor(2)], [tensor(9, 4)], 12),
        ("aten._embedding_bag_backward.default", [tensor(2, 4), tensor(2, 4, dtype="int64")], [tensor(9, 4)], 2),
        ("aten._embedding_bag_backward.default", [tensor(2, 4), tensor(2)], sparse((9, 4), tensor(8, 4)), 1),
        ("aten._coalesce.default", sparse((9, 128), tensor(8, 128)), sparse((9, 128), tensor(8, 128)), 8),
        (
            "aten._coalesce.default",
            sparse((9, 9), tensor(8), dimensions=2),
            sparse((9, 9), tensor(8), dimensions=2),
            15,
        ),
        ("aten.mul.Tensor", sparse((9, 128), tensor(8, 128)), sparse((9, 128), tensor(8, 128)), 2),
    ],
)
def test_launches_depend_on_sizes_and_types(name, inputs, outputs, expected):
    """As PyTorch 2.13 was seen to launch them on the stand-in device."""
    assert launches(call(name, inputs, outputs)) == expected


def test_one_value_of_each_row_of_many_classes_leaves_a_step_its_estimate():
    scores = tensor(8192, 50257)
    labels = tensor(8192, 1, dtype="int64")
    picked = call("aten.gather.default", [scores, labels], [tensor(8192, 1)])
    loss = call("aten.nll_loss_forward.default", [scores, tensor(8192, dtype="int64")], [tensor(), tensor()])
    estimated = estimate([product(1024), picked, loss], "H100")
    assert estimated.covered_pct == 100
    assert estimated.gpu_ms[1] < 0.2


def test_of_a_table_the_rows_that_are_looked_up_are_moved_and_of_a_sparse_tensor_indices_and_values():
    table = tensor(10**6, 128)
    rows = tensor(8, dtype="int64")
    vectors = tensor(8, 128)
    assert moved_bytes(call("aten.embedding.default", [table, rows], [vectors])) == 8 * 8 + 2 * 4 * 8 * 128
    gradient = sparse((10**6, 128), vectors)
    assert moved_bytes(call("aten.mul.Tensor", gradient, gradient)) == 2 * (8 * 8 + 4 * 8 * 128)


def test_memory_fits_or_not_and_the_largest_batch_is_on_the_line_through_those_followed():
    gpu = gpu_named("H100")
    peaks = {2: 10 * 10**9, 8: 16 * 10**9}
    assert largest_batch(peaks, gpu) == 76  # 79.6 times 2^30 bytes, less a gigabyte for the context
    assert largest_batch({2: 10**9}, gpu) is None
    assert largest_batch({2: 10**9, 64: 10**9 + 2**20}, gpu) is None  # a line through rounding
    assert largest_batch({2: 90 * 10**9, 4: 100 * 10**9}, gpu) == 0
    followed = FollowedStep([add(10)], batch=8, peak_memory_bytes=peaks[8])
    result = estimate_step(followed, gpu, peaks=peaks)
    assert (result.fits, result.largest_batch) == (True, 76)
    assert estimate([add(10)], "H100", peak_memory_bytes=85 * 10**9).fits is False
    assert estimate([add(10)], "H100", peak_memory_bytes=80 * 10**9).fits is True


def test_a_gpu_s_name_may_be_in_small_letters_and_an_unknown_one_names_those_that_exist_and_how_to_add_it():
    assert (gpu_named("rtx-4090").name, gpu_named("h100").name) == ("RTX-4090", "H100")
    with pytest.raises(ConfigError) as raised:
        gpu_named("H1000")
    assert "RTX-4090" in str(raised.value)
    assert "add [H1000]" in str(raised.value)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("A100", {"A100-80", "A100-40", "A100-PCIe-80", "A100-PCIe-40"}),
        ("NVIDIA A100-SXM4", {"A100-80", "A100-40"}),
        ("RTX 3090 Ti", {"RTX-3090"}),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", {"RTX-4090"}),
        ("Tesla V100-PCIE-32GB", {"V100", "V100-SXM2", "V100-SXM2-32"}),
        ("H200 NVL", {"H200"}),
        ("B20", {"B200"}),
        ("HH100", {"H100"}),
        ("xyz", set()),
    ],
)
def test_of_an_unknown_name_those_that_may_have_been_meant_are_named(asked, meant):
    with pytest.raises(ConfigError) as raised:
        gpu_named(asked)
    named, found, _ = str(raised.value).partition("next: ")[2].partition("? Otherwise")
    words = set(named.replace("did you mean", "").replace(" or ", " ").split()) if found else set()
    assert words == meant


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("H100 SXM5", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("h100-80gb", "H100"),
        ("H100-SXM5-80GB", "H100"),
        ("h100_pcie", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("a100-40gb", "A100-40"),
        ("A100 80GB PCIe", "A100-PCIe-80"),
        ("A100-PCIE-40GB", "A100-PCIe-40"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("A100_SXM_40", "A100-40"),
        ("rtx4090", "RTX-4090"),
        ("4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 5090", "RTX-5090"),
        ("RTX 6000 Pro", "RTX-PRO-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2"),
        ("v100 sxm2", "V100-SXM2"),
        ("V100-PCIe", "V100"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32"),
        ("nvidia t4", "T4"),
        ("H200 141GB", "H200"),
        ("GB200 NVL72", "GB200"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_a_gpu_may_be_named_as_its_driver_or_a_seller_names_it(asked, name):
    assert gpu_named(asked).name == name


def test_every_gpu_is_found_by_the_name_that_its_driver_reports_and_by_no_other_s_words():
    for gpu in shipped_gpus().values():
        assert gpu_named(driver_facts(gpu).name) is gpu
        for word in gpu.words:
            assert gpu_named(f"{gpu.name} {word}") is gpu


def test_a_file_in_the_working_directory_adds_a_gpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    figures = "fp32_tflops = 10\nhalf_tflops = 40\nbandwidth_gbs = 500\nmemory_gb = 8\npcie_gbs = 16\n"
    (tmp_path / "gpus.toml").write_text(f"[Mine]\n{figures}")
    assert estimate([product(1024)], "Mine").gpu == "Mine"
    for wrong, words in (("[Mine]\nfp32_tflops = 1\n", "half_tflops"), (f"[M]\n{figures}sms = 4\n", "sms"), ("x", "=")):
        (tmp_path / "gpus.toml").write_text(wrong)
        with pytest.raises(ConfigError, match=words):
            gpu_named("Mine")
    (tmp_path / "gpus.toml").write_text(f"[Mine]\n{figures.replace('500', '0')}")
    with pytest.raises(ConfigError, match="bandwidth_gbs is not a number above 0"):
        gpu_named("Mine")


def test_the_gpu_work_that_a_variant_saves_is_told_by_class():
    shared = product(2048)
    gone = add(10**8)
    followed = {"base": FollowedStep([shared, gone]), "less": FollowedStep([shared])}
    found = estimate_variants(followed, dict.fromkeys(followed, "base"), gpu_named("H100"))["less"].difference
    (saving,) = found.gpu_classes
    assert saving.kind == kind_of(gone, "32")
    assert saving.saved_ms == found.gpu_saved_ms
    assert saving.saved_ms[0] > 0


def test_a_variant_that_has_more_gpu_work_saves_none_by_any_class():
    followed = {"base": FollowedStep([add(10**8)]), "more": FollowedStep([add(10**8), product(2048)])}
    found = estimate_variants(followed, dict.fromkeys(followed, "base"), gpu_named("H100"))["more"].difference
    assert found.gpu_classes == ()
    assert found.gpu_saved_ms[1] < 0


def test_variants_share_their_draws_so_that_their_difference_is_sure_where_their_bands_overlap():
    """One saves a tenth of the same kernels: its band overlaps the other one's, and it is faster in all draws."""
    shared = [product(4096 + 64 * index) for index in range(10)]
    followed = {"base": FollowedStep([*shared, add(10**8)]), "less": FollowedStep(shared)}
    found = estimate_variants(followed, dict.fromkeys(followed, "base"), gpu_named("H100"))
    base = found["base"]
    less = found["less"]
    assert base.step_ms[0] < less.step_ms[1]
    assert base.difference is None
    assert less.difference.is_faster
    assert less.difference.faster_pct == 100
    saved = 1.2e9 / 3350e6
    assert saved < less.difference.saved_ms[1] < 2 * saved
    assert (less.behind, base.behind.baseline, base.behind.is_slower) == (None, "less", True)


def test_variants_that_are_alike_cannot_be_told_apart():
    followed = {"base": FollowedStep([product(4096)]), "same": FollowedStep([product(4096)])}
    pair = estimate_variants(followed, dict.fromkeys(followed, "base"), gpu_named("H100"))["same"].difference
    assert pair.saved_ms == (0, 0)
    assert not pair.is_faster
    assert not pair.is_slower


def test_the_same_step_has_the_same_band_each_time():
    first, again = (estimate([product(4096), add(10**8)], "A100-80") for _ in range(2))
    assert first == again


def test_samples_a_second_and_mfu_follow_from_the_step():
    result = estimate([product(8192, "bfloat16", calls=4)], "H100", batch=32)
    low, high = result.step_ms
    assert result.samples_per_s == pytest.approx((32e3 / high, 32e3 / low), rel=0.01)
    flop = 4 * 2 * 8192**3
    expected = [min(100, 100 * flop / (1e-3 * ms) / 989e12) for ms in (high, low)]
    assert result.mfu_pct == pytest.approx(expected, rel=0.01)


def test_work_is_listed_by_class_with_what_was_tested():
    result = estimate([product(8192, "bfloat16"), add(10**8), UNCOVERED], "H100")
    by_kind = {one.kind: one for one in result.work}
    assert by_kind["product"].flop == pytest.approx(2 * 8192**3, rel=1e-3)
    assert by_kind["elementwise"].bytes == pytest.approx(1.2e9, rel=1e-3)
    assert [by_kind[kind].tested for kind in ("product", "elementwise", "not covered")] == [True, True, False]
    assert result.tested_pct == pytest.approx(result.covered_pct, abs=0.1)
    assert sum(one.share_pct for one in result.work) == pytest.approx(100, abs=0.1)


@pytest.mark.parametrize(
    "name",
    ["index", "index_put_", "nonzero", "scatter_", "sort", "embedding_dense_backward", "upsample_nearest2d", "cumsum"],
)
def test_no_step_is_refused_for_want_of_a_rule_of_losses_and_masks(name):
    indices = tensor(10**6, dtype="int64")
    result = estimate([call(f"aten.{name}.default", [tensor(10**7), indices], [tensor(10**6)])], "H100")
    assert result.step_ms is not None
    assert result.tested_pct == 0


def test_a_batch_norm_in_evaluation_reads_its_images_once():
    images = tensor(64, 64, 56, 56)
    weights = [tensor(64)] * 4
    in_training, in_evaluation = (
        kernels_of(
            call("aten.native_batch_norm.default", [images, *weights], [images], arguments={"training": training})
        )[0]
        for training in (True, False)
    )
    assert (in_training.kind, in_evaluation.kind) == ("batch norm", "batch norm in evaluation")
    assert in_training.bytes - in_evaluation.bytes == 4 * math.prod(images.shape)


def all_reduce(elements: int, **more: object) -> OperatorCalls:
    return call("c10d.allreduce_.default", [tensor(elements)], [tensor(elements)], **more)


def test_an_all_reduce_of_the_backward_pass_is_hidden_behind_the_kernels_that_follow_it():
    """As DistributedDataParallel launches it: it waits for the gradients, and the optimizer waits for it."""
    kernels = [product(8192, phase="backward", line=1), product(8192, phase="backward", line=2)]
    reduce = all_reduce(10**8, phase="backward")
    optimizer = add(10**6, phase="optimizer")
    early, late = (
        estimate(order, "H100", devices=8)
        for order in ([kernels[0], reduce, kernels[1], optimizer], [*kernels, reduce, optimizer])
    )
    assert early.communication_ms == late.communication_ms
    assert early.communication_bytes == late.communication_bytes == 4 * 10**8
    bus_s = 2 * 7 / 8 * 4e8 / 450e9  # at the full rate of the link
    assert 0.7e3 * bus_s < late.communication_ms[0] < late.communication_ms[1] < 2e3 * bus_s
    assert late.exposed_ms == pytest.approx(late.communication_ms, rel=0.05)
    assert early.exposed_ms[1] < 0.05 * late.exposed_ms[1]
    assert late.step_ms[0] > late.gpu_ms[0] + 0.9 * late.exposed_ms[0]


def test_parameters_are_gathered_ahead_of_the_kernels_that_need_them():
    """As FSDP launches it: the next layer's parameters come while this layer computes."""
    gather = call("c10d._allgather_base_.default", [tensor(8 * 10**6), tensor(10**6)], [], phase="forward")
    layer = product(8192)
    result = estimate([gather, layer], "H100", devices=8, steps=1, queue=[0, 1] * 6)
    assert result.exposed_ms[1] < 0.4 * result.communication_ms[1]


def test_a_gpu_whose_links_were_not_measured_has_a_wide_range():
    widths = []
    for gpu in ("H100", "H100-NVL", "RTX-4090"):
        low, high = estimate([all_reduce(10**8)], gpu, devices=4).communication_ms
        widths.append(high / low)
    assert widths[0] < 2 < widths[1] < widths[2]


def test_one_gpu_has_no_communication():
    result = estimate([product(4096)], "H100")
    assert (result.devices, result.communication_ms, result.exposed_ms) == (1, None, None)


def test_copies_of_fsdp_are_covered():
    copy = call("fsdp.all_gather_copy_in.default", [tensor(10**7)], [tensor(10**7)])
    assert estimate([copy], "H100").covered_pct == 100


def test_a_queue_of_items_is_estimated_as_the_operators_that_it_stands_for():
    calls = [product(4096), add(10**7), all_reduce(10**6, phase="backward")]
    followed = FollowedStep(calls, devices=2, queue=[0, 1, 2, -1], syncs=1)
    launched, order, _ = _queue(followed)
    items = [launched[item].kernel if isinstance(item, int) else item for item in order]
    same = estimate_step(FollowedStep((), items=items, devices=2, syncs=1), gpu_named("H100"))
    expected = estimate_step(followed, gpu_named("H100"))
    assert same.step_ms == expected.step_ms
    assert (same.launches, same.work, same.exposed_ms) == (expected.launches, expected.work, expected.exposed_ms)


def test_a_graph_s_kernels_are_launched_at_once():
    kernels = [Kernel(kind="elementwise", bytes=1e3, shape=str(number)) for number in range(500)]
    alone, graph = (
        estimate_step(FollowedStep((), items=items), gpu_named("H100"))
        for items in (kernels, [GraphLaunch(kernels=tuple(kernels))])
    )
    assert (alone.launches, graph.launches) == (500, 1)
    assert (alone.limited_by, graph.host_ms[1] < 0.1) == ("launches", True)
    assert graph.gpu_ms[0] > 0.5 * alone.gpu_ms[0]
    assert graph.step_ms[1] < alone.step_ms[0]


def test_a_class_that_varies_with_the_library_s_version_has_a_wide_band_and_says_so():
    given = images(64, 128, 56, 56, dtype="float16", last=True)
    whole, grouped = (
        call(
            "aten.convolution_backward.default",
            [given, given, images(128, 128 // groups, 3, 3, dtype="float16", last=True)],
            [given, images(128, 128 // groups, 3, 3, dtype="float16", last=True)],
            flop=10**12 // groups,
        )
        for groups in (1, 4)
    )
    both = [estimate([one], "H100") for one in (whole, grouped)]
    assert [one.work[0].varies for one in both] == [False, True]
    widths = [one.gpu_ms[1] / one.gpu_ms[0] for one in both]
    assert widths[1] > 1.2 * widths[0]


def test_the_parts_of_a_difference_add_up_to_it_and_say_what_syncs_and_launches_add():
    shared = product(2048)
    gone = add(10**8)
    calls = [shared, gone, *[add(8)] * 50]
    with_syncs = FollowedStep(calls, queue=[0, SYNC, 1, SYNC, *range(2, 52), SYNC], syncs=3)
    followed = {"base": with_syncs, "less": FollowedStep([shared], queue=[0])}
    found = estimate_variants(followed, dict.fromkeys(followed, "base"), gpu_named("H100"))["less"].difference
    before, after = found.mean_ms
    assert sum(part.mean_ms for part in found.parts) == pytest.approx(before - after, rel=1e-9)
    by_part = {(part.part, part.kind): part for part in found.parts}
    assert by_part["compute", kind_of(gone, "32")].saved_ms[0] > 0
    assert by_part["idle_sync", None].mean_ms > 0
    assert all(part.saved_ms[0] <= part.saved_ms[1] for part in found.parts)


def test_a_step_that_launches_too_much_saves_the_wait_for_launches():
    followed = {"base": FollowedStep([add(8)] * 5000), "less": FollowedStep([add(8)])}
    found = estimate_variants(followed, dict.fromkeys(followed, "base"), gpu_named("H100"))["less"].difference
    (waits,) = [part for part in found.parts if part.part == "idle_host"]
    (syncs,) = [part for part in found.parts if part.part == "idle_sync"]
    assert waits.mean_ms > 0.5 * (found.mean_ms[0] - found.mean_ms[1])
    assert syncs.mean_ms == pytest.approx(0, abs=1e-9)
