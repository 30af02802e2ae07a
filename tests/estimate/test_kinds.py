"""Kinds of kernels that are slower than their bytes or FLOP say, each held to its class and to what it moves."""

import math
from dataclasses import replace

import pytest

from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.estimate.constants import shipped
from steptrace.estimate.cudnn import group_effort
from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import gpu_named
from steptrace.estimate.kernel_classes import kind_of
from steptrace.estimate.traced_operator import dense
from steptrace.estimate.work import converted_bytes, kernels_of, on_gpu

MIB = 2**20


def tensor(*shape: int, dtype: str = "bfloat16", strides: tuple[int, ...] | None = None) -> TensorSpec:
    return TensorSpec(shape=shape, strides=dense(shape) if strides is None else strides, dtype=dtype)


def call(name: str, inputs: list[TensorSpec], outputs: list[TensorSpec], flop: int = 0) -> OperatorCalls:
    return OperatorCalls(
        name=f"aten.{name}.default",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        is_view=False,
        flop=flop,
        calls=1,
        phase="forward",
        file=None,
        line=None,
    )


X = tensor(8, 64, 32, 32)
WIDE = tensor(8, 64, 32, 32, dtype="float32")


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "expected"),
    [
        ("add", [X, X], [X], "elementwise"),
        ("mul", [X], [X], "elementwise"),
        ("add", [X, tensor(64, 1, 1)], [X], "strided elementwise"),
        ("mul", [tensor(1, 64, 1, 1), X], [X], "strided elementwise"),
        ("where", [tensor(32, dtype="bool"), X, X], [X], "strided elementwise"),
        ("add", [X, tensor()], [X], "strided elementwise"),
        # Wider elements take as long to move as their places to compute.
        ("add", [WIDE, tensor(64, 1, 1, dtype="float32")], [WIDE], "elementwise"),
        # What is no map of equal shapes: nothing is repeated.
        ("cat", [tensor(8, 64), tensor(8, 64)], [tensor(16, 64)], "elementwise"),
        ("_foreach_add_", [X, tensor(64)], [], "elementwise"),
    ],
)
def test_a_map_that_repeats_an_input_is_strided(name, inputs, outputs, expected):
    assert kind_of(call(name, inputs, outputs), "16") == expected


@pytest.mark.parametrize(
    ("row", "dtype", "is_slow"),
    [
        (3137, "bfloat16", True),
        (5185, "float16", True),
        (3136, "bfloat16", False),  # aligned: kept in shared memory
        (197, "bfloat16", False),  # short: kept in registers
        (3137, "float32", False),  # as fast as aligned ones in NeuSight's kernels
    ],
)
def test_a_softmax_of_long_rows_that_are_not_aligned_is_slow_in_16_bit(row, dtype, is_slow):
    scores = tensor(96, row, row, dtype=dtype)
    kind = kind_of(call("_softmax", [scores], [scores]), "16")
    assert (kind != "softmax") is is_slow
    assert shipped().efficiency_of(kind, "none", gpu_named("H100")).memory < 0.3 or not is_slow


def conv(images: TensorSpec, weight: TensorSpec, made: TensorSpec, *, bias: bool, backward: bool) -> OperatorCalls:
    biases = [tensor(weight.shape[0])] if bias else []
    if backward:
        return call("convolution_backward", [made, images, weight], [images, weight, *biases], flop=10**9)
    return call("convolution", [images, weight, *biases], [made], flop=10**9)


@pytest.mark.parametrize(("backward", "kind", "moved"), [(False, "strided elementwise", 2), (True, "reduction", 1)])
def test_a_convolution_s_bias_is_added_as_a_repeated_tensor_and_its_gradient_is_a_sum(backward, kind, moved):
    images = tensor(64, 64, 64, 64)
    weight = tensor(128, 64, 3, 3)
    made = tensor(64, 128, 64, 64)
    beside = {
        bias: [
            one
            for one in kernels_of(conv(images, weight, made, bias=bias, backward=backward))
            if one.kind in ("strided elementwise", "reduction")
        ]
        for bias in (False, True)
    }
    assert beside[False] == []
    (one,) = beside[True]
    assert (one.kind, one.launches, one.bytes) == (kind, 1, moved * 64 * MIB)


def test_a_conversion_pads_few_channels():
    """An image of 3 channels is written as one of 8."""
    made = tensor(8, 64, 32, 32)
    few, many = (
        conv(tensor(8, channels, 32, 32), tensor(64, channels, 3, 3), made, bias=False, backward=False)
        for channels in (3, 8)
    )
    pixels = 8 * 32 * 32
    assert converted_bytes(many, "16") - converted_bytes(few, "16") == 2 * pixels * (8 - 3)


@pytest.mark.parametrize("kind", ["convolution, one side under 32 channels", "grouped convolution"])
def test_convolutions_that_load_few_channels_are_as_fast_as_their_gpu_s_multiprocessors(kind):
    rates = []
    for name in ("H100", "A100-80", "L40S"):
        gpu = gpu_named(name)
        peak = gpu.flops("float16")
        assert peak is not None
        rates.append(shipped().efficiency_of(kind, "16", gpu).arithmetic * peak / driver_facts(gpu).sms)
    assert max(rates) == pytest.approx(min(rates), rel=0.35)


@pytest.mark.parametrize(
    "kind", ["convolution backward", "convolution, channels last", "convolution, channels last backward"]
)
def test_float32_takes_its_figures_from_float32(kind):
    """Of another pass or layout. Shares in 16 bit are of tensor cores."""
    gpu = gpu_named("V100")
    forward, found = (shipped().efficiency_of(one, "32", gpu) for one in ("convolution", kind))
    assert found.arithmetic == forward.arithmetic
    assert found.spread_arithmetic > forward.spread_arithmetic
    assert not found.tested


def test_float64_is_estimated_by_the_data_sheet_s_rate_and_not_tested():
    gpu = gpu_named("RTX-4090")
    (kernel,) = kernels_of(
        call("mm", [tensor(512, 512, dtype="float64")] * 2, [tensor(512, 512, dtype="float64")], flop=2 * 512**3)
    )
    assert kernel.format == "64"
    assert gpu.flops(kernel.arithmetic) == 1.29e12
    assert not shipped().efficiency_of(kernel.kind, kernel.format, gpu).tested


def _convolved(channels: int, weight: tuple[int, ...], *, last: bool = True, backward: bool = False) -> OperatorCalls:
    def images(count: int) -> TensorSpec:
        strides = (16 * 16 * count, 1, 16 * count, count) if last else (256 * count, 256, 16, 1)
        return TensorSpec(shape=(8, count, 16, 16), strides=strides, dtype="float16")

    kernel = tensor(*weight)
    source = images(channels)
    result = images(weight[0])
    if backward:
        return call("convolution_backward", [result, source, kernel], [source, kernel])
    return call("convolution", [source, kernel], [result])


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("groups", "width", "kind"),
    [
        (32, 4, "grouped convolution, groups of 4 to 32 channels, channels last"),
        (32, 32, "grouped convolution, groups of 4 to 32 channels, channels last"),
        (32, 64, "grouped convolution, channels last"),
        (32, 12, "grouped convolution, channels last"),  # cuDNN has no tile of 12
        (4, 32, "grouped convolution, channels last"),  # few groups
        (26, 8, "grouped convolution, channels last"),  # 208 channels are no whole tiles
    ],
)
def test_groups_in_channels_last_are_fast_if_they_fill_tiles(groups, width, kind, *, backward):
    shape = (groups * width, width, 3, 3)
    ending = " backward" if backward else ""
    assert kind_of(_convolved(groups * width, shape, backward=backward), "16") == kind + ending
    plain = _convolved(groups * width, shape, last=False, backward=backward)
    assert kind_of(plain, "16") == "grouped convolution" + ending


@pytest.mark.parametrize(("width", "factor"), [(8, 2), (12, 16 / 12), (64, 1), (56, 64 / 56)])
def test_groups_without_tiles_add_up_16_channels_at_once(width, factor):
    assert group_effort(_convolved(7 * width, (7 * width, width, 3, 3))) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("size", "last", "kind"),
    [
        (7, True, "depthwise convolution, channels last"),
        (9, True, "depthwise convolution, large kernels, channels last"),
        (9, False, "depthwise convolution"),
    ],
)
def test_large_depthwise_kernels_are_a_class_in_channels_last(size, last, kind):
    assert kind_of(_convolved(64, (64, 1, size, size), last=last), "16") == kind


@pytest.mark.parametrize(
    ("name", "count", "last", "kind"),
    [
        ("native_batch_norm", 64, True, "batch norm, channels last"),
        ("native_batch_norm", 52, True, "batch norm, channels last"),
        ("native_batch_norm", 126, True, "batch norm, channels not a multiple of 4, channels last"),
        ("native_batch_norm", 126, False, "batch norm"),
        ("max_pool2d_with_indices", 64, True, "pooling, channels last"),
        ("max_pool2d_with_indices", 64, False, "pooling"),
        ("avg_pool2d_backward", 64, True, "pooling, channels last backward"),
        ("avg_pool2d_backward", 64, False, "pooling backward"),
    ],
)
def test_norms_and_pooling_differ_by_layout(name, count, last, kind):
    images = _convolved(count, (count, count, 1, 1), last=last).inputs[0]
    inputs = [images, images] if "backward" in name else [images]
    assert kind_of(call(name, inputs, [images]), "16") == kind


def test_classes_of_one_layout_have_constants_everywhere():
    for kind in (
        "grouped convolution, groups of 4 to 32 channels, channels last backward",
        "depthwise convolution, large kernels, channels last",
        "batch norm, channels not a multiple of 4, channels last",
        "pooling, channels last backward",
    ):
        for format_ in ("32", "tf32", "16", "none"):
            found = shipped().efficiency_of(kind, format_, gpu_named("H100"))
            assert found != shipped().efficiency_of("irregular", format_, gpu_named("H100"))


@pytest.mark.parametrize(("gpu", "format_"), [("T4", "32"), ("V100", "32"), ("A100-40", "tf32"), ("L4", "tf32")])
def test_tf32_is_float32_on_a_gpu_without_it(gpu, format_):
    images = tensor(8, 64, 16, 16, dtype="float32")
    weight = tensor(64, 64, 3, 3, dtype="float32")
    (kernel,) = kernels_of(replace(call("convolution", [images, weight], [images]), flop=10**9), tf32=True)
    assert on_gpu(kernel, gpu_named(gpu)).format == format_
    assert on_gpu(kernel, gpu_named(gpu)).kind.startswith("convolution")


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("size", "stride", "dilation", "kind"),
    [
        (3, 1, 1, "convolution"),
        (3, 1, 2, "convolution, implicit GEMM"),
        (3, 2, 1, "convolution, implicit GEMM"),
        (1, 1, 1, "convolution, implicit GEMM"),
        (5, 1, 1, "convolution, implicit GEMM"),
    ],
)
def test_in_float32_a_convolution_has_winograd_s_form_or_is_a_product(size, stride, dilation, kind, *, backward):
    shapes = ((8, 64, 28, 28), (96, 64, size, size), (8, 96, 28 // stride, 28 // stride))
    images, weight, made = (tensor(*shape, dtype="float32") for shape in shapes)
    places = 8 * (28 // stride) ** 2
    terms = 64 * size**2
    inputs, outputs = ([made, images, weight], [images, weight]) if backward else ([images, weight], [made])
    name = "convolution_backward" if backward else "convolution"
    of_call = call(name, inputs, outputs, flop=2 * places * terms * 96)
    of_call = replace(of_call, arguments={"dilation": [dilation, dilation]})
    (kernel,) = kernels_of(of_call)
    assert kernel.kind == kind + (" backward" if backward else "")
    assert kernel.sizes == (1, 96, places, terms)
    assert kernel.effort == 1  # 28 pixels are seven squares of 4
    # On tensor cores nothing changes. A GPU without TF32 has the kernel of float32.
    (on_tensor_cores,) = kernels_of(of_call, tf32=True)
    assert (on_tensor_cores.kind.removesuffix(" backward"), on_tensor_cores.sizes) == ("convolution", ())
    assert on_gpu(on_tensor_cores, gpu_named("A100-40")) == on_tensor_cores
    assert on_gpu(on_tensor_cores, gpu_named("V100")) == kernel


@pytest.mark.parametrize(
    ("groups", "width", "kind"), [(4, 32, "convolution"), (7, 128, "convolution"), (7, 24, "grouped convolution")]
)
def test_in_float32_groups_that_fill_tiles_are_as_many_convolutions(groups, width, kind):
    channels = groups * width
    images, weight = (tensor(*shape, dtype="float32") for shape in ((8, channels, 28, 28), (channels, width, 3, 3)))
    flop = 2 * 8 * 28 * 28 * channels * width * 9
    (kernel,) = kernels_of(call("convolution", [images, weight], [images], flop=flop))
    assert kernel.kind == kind
    if kind == "convolution":
        assert kernel.sizes == (groups, width, 8 * 28 * 28, 9 * width)
        assert 2 * math.prod(kernel.sizes) == flop


def test_winograd_s_form_may_be_missing_on_a_gpu_whose_convolutions_were_not_measured():
    measured, other = (shipped().efficiency_of("convolution", "32", gpu_named(gpu)) for gpu in ("V100", "H100"))
    of_products = shipped().efficiency_of("product", "32", gpu_named("H100"))
    assert measured.arithmetic > 1  # Winograd's form multiplies less than the FLOP say
    assert other.arithmetic == of_products.arithmetic < 1
    assert other.arithmetic * math.exp(1.645 * other.spread_arithmetic) > 1
    assert not other.tested


def test_squares_of_winograd_s_form_reach_beyond_small_images():
    images, weight = (tensor(*shape, dtype="float32") for shape in ((8, 64, 7, 7), (64, 64, 3, 3)))
    (kernel,) = kernels_of(call("convolution", [images, weight], [images], flop=10**9))
    assert kernel.effort == pytest.approx((8 / 7) ** 2)


def test_norms_of_wide_elements_reach_more_of_the_bandwidth_than_of_narrow_ones_and_no_more_than_maps():
    images = {dtype: tensor(8, 64, 32, 32, dtype=dtype) for dtype in ("float16", "float32")}
    for name in ("native_batch_norm", "max_pool2d_with_indices_backward"):
        kernels = [kernels_of(call(name, [one] * 3, [one]))[0] for one in images.values()]
        for gpu in map(gpu_named, ("V100", "H100", "RTX-3090")):
            narrow, wide = (shipped().efficiency_for(kernel, gpu) for kernel in kernels)
            most = shipped().efficiency_of("elementwise", "none", gpu).memory
            assert narrow.memory < wide.memory <= most
            assert wide.spread_memory > narrow.spread_memory
            assert not wide.tested
    maps = [kernels_of(call("relu", [one], [one]))[0] for one in images.values()]
    assert len({shipped().efficiency_for(kernel, gpu_named("V100")) for kernel in maps}) == 1


def test_a_name_of_two_cards_has_a_wider_band_than_a_card():
    sheet = gpu_named("A100-40")
    assert len(sheet.forms) == 2
    both, alone = (shipped().efficiency_of("product", "32", gpu) for gpu in (sheet, replace(sheet, forms=())))
    assert both.spread_arithmetic > alone.spread_arithmetic
    assert both.arithmetic > alone.arithmetic  # the card of the least power was measured


def test_groups_with_more_results_than_inputs_have_no_tiles():
    assert kind_of(_convolved(256, (512, 8, 3, 3)), "16") == "grouped convolution, channels last"


@pytest.mark.parametrize(
    ("name", "inputs", "written"),
    [
        # A cache of keys of which one place of each sample is set: `tests` of inference write little of much.
        ("index_put_", [tensor(64, 4096, 128), tensor(64, dtype="int64"), tensor(64, 128)], 64 * 128),
        ("index_copy_", [tensor(4096, 64), tensor(8, dtype="int64"), tensor(8, 64)], 8 * 64),
        ("index_add_", [tensor(4096, 64), tensor(8, dtype="int64"), tensor(8, 64)], 8 * 64),
        ("scatter_", [tensor(4096, 64), tensor(4096, 1, dtype="int64")], 4096),
        ("scatter_add_", [tensor(4, 64), tensor(4096, 64, dtype="int64"), tensor(4096, 64)], 4 * 64),
        # How many elements a mask selects is not known.
        ("index_put_", [tensor(4096, 64), tensor(4096, dtype="bool"), tensor(8, 64)], 4096 * 64),
        ("index_put_", [tensor(4096, 64), tensor(9, dtype="int64"), tensor()], 4096 * 64),
    ],
)
def test_what_is_written_in_place_moves_the_elements_that_it_changes(name, inputs, written):
    (kernel,) = kernels_of(call(name, inputs, inputs[:1]))
    read = sum(
        math.prod(one.shape) * (8 if one.dtype == "int64" else 1 if one.dtype == "bool" else 2) for one in inputs[1:]
    )
    assert kernel.bytes == read + 2 * 2 * written


@pytest.mark.parametrize("name", ["_embedding_bag", "_embedding_bag_forward_only"])
def test_a_bag_of_embeddings_reads_the_rows_that_it_adds_up(name):
    table = tensor(10**6, 128, dtype="float32")
    rows = tensor(640, dtype="int64")
    result = tensor(64, 128, dtype="float32")
    (kernel,) = kernels_of(call(name, [table, rows], [result]))
    assert kernel.kind == "lookup"
    assert kernel.bytes == 640 * 128 * 4 + 640 * 8 + 64 * 128 * 4


@pytest.mark.parametrize(
    ("name", "scores", "labels"),
    [("nll_loss_backward", (4096, 50304), (4096,)), ("nll_loss2d_backward", (8, 19, 512, 512), (8, 512, 512))],
)
def test_a_loss_s_gradient_is_filled_and_its_scores_are_not_read(name, scores, labels):
    wide = tensor(*scores, dtype="float32")
    target = tensor(*labels, dtype="int64")
    fill, loss = kernels_of(call(name, [tensor(dtype="float32"), wide, target, tensor(dtype="float32")], [wide]))
    assert (fill.kind, fill.launches, fill.bytes) == ("elementwise", 1, 4 * math.prod(scores))
    assert (loss.launches, loss.bytes) == (1, 8 * math.prod(labels) + 8)


def test_a_copy_of_a_broadcast_gradient_is_written_in_full():
    images = tensor(64, 64, 64, 64)
    weight = tensor(128, 64, 3, 3)
    of_sum = tensor(64, 128, 64, 64, strides=(0, 0, 0, 0))
    copies = [
        one
        for one in kernels_of(conv(images, weight, of_sum, bias=False, backward=True))
        if one.kind == "strided elementwise"
    ]
    assert [one.bytes for one in copies] == [64 * MIB + 2]


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "full_like", "rand_like", "new_zeros", "new_full"])
def test_a_tensor_of_another_s_shape_is_written_alone(name):
    (kernel,) = kernels_of(call(name, [X], [WIDE]))
    assert kernel.bytes == 4 * math.prod(WIDE.shape)


def test_a_loss_of_pixels_reads_one_score_for_each():
    scores = tensor(8, 19, 512, 512, dtype="float32")
    labels = tensor(8, 512, 512, dtype="int64")
    (kernel,) = kernels_of(call("nll_loss2d_forward", [scores, labels], [tensor(dtype="float32")]))
    assert kernel.bytes < 1.1 * 8 * math.prod(labels.shape)


def test_products_of_complex_numbers_multiply_four_times():
    one = tensor(64, 64, dtype="complex64")
    (kernel,) = kernels_of(call("mm", [one, one], [one], flop=2 * 64**3))
    assert (kernel.flop, kernel.format) == (8 * 64**3, "32")
    wide = tensor(64, 64, dtype="complex128")
    (kernel,) = kernels_of(call("mm", [wide, wide], [wide], flop=2 * 64**3))
    assert kernel.format == "64"


def test_products_of_whole_numbers_are_faster_than_those_in_16_bit_and_not_tested():
    a = tensor(4096, 4096, dtype="int8")
    b = tensor(4096, 4096, dtype="int8")
    made = tensor(4096, 4096, dtype="int32")
    (kernel,) = kernels_of(call("_int_mm", [a, b], [made], flop=2 * 4096**3))
    assert (kernel.kind, kernel.format) == ("product", "int8")
    for name in ("A100-80", "H100", "T4"):
        gpu = gpu_named(name)
        assert (gpu.flops("int8") or 0.0) >= 1.9 * gpu.half_tflops * 1e12
        assert not shipped().efficiency_of("product", "int8", gpu).tested


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("linalg_cross", "elementwise"),
        ("addmm_", "product"),
        ("addmv_", "product"),
        ("baddbmm_", "batched product"),
        ("addbmm_", "batched product"),
        ("_weight_int8pack_mm", "product"),
        ("_scaled_mm_v2", "product"),
        ("_cslt_sparse_mm", "not covered"),
        ("_thnn_fused_lstm_cell", "elementwise"),
        ("adaptive_max_pool2d", "pooling"),
        ("_adaptive_avg_pool3d_backward", "pooling backward"),
        ("_upsample_nearest_exact2d", "resampling"),
        ("_upsample_bilinear2d_aa_backward", "resampling backward"),
        ("_embedding_bag_backward", "scatter"),
        ("_euclidean_dist", "product"),
        ("_trilinear", "batched product"),
    ],
)
def test_less_common_operators_have_the_class_of_their_kind(name, kind):
    one = tensor(8, 64, 32, 32, dtype="float32")
    assert kind_of(call(name, [one, one], [one]), "32") == kind
