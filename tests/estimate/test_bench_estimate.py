"""bench/estimate*.py: constants are derived from measured kernels and steps, and measurements are held to bands."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benches import bench_module
from recorded import TRACES
from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.estimate.constants import shipped
from steptrace.estimate.gpus import gpu_named
from steptrace.estimate.times import kernel_seconds
from steptrace.estimate.work import Kernel, kernels_of

#: Beside the recorded traces.
PUBLISHED = TRACES.parent / "estimate"
#: Of an RTX PRO 6000; smaller tensors may lie in a cache.
_LARGEST_L2 = 128 * 2**20
needs_published = pytest.mark.skipif(not (PUBLISHED / "published").is_dir(), reason="no published measurements")


def _program(name: str) -> Any:
    """A fixture: the module bench/NAME.py."""

    def module() -> Any:
        return bench_module(name)

    return pytest.fixture(scope="module")(module)


traced = _program("kernels_of_traces")
derive = _program("estimate_constants")
timm = _program("estimate_timm")
book = _program("published_book_steps")
language = _program("published_language_models")
bench = _program("estimate")


def _sources(fits) -> dict[tuple[str, str, str], str]:
    return {(*kind, gpu): "kernels of a table" for kind, by_gpu in fits.items() for gpu in by_gpu}


#: What attention loses, by family.
LOSSES = shipped().attention


def _products(derive, gpu: str, share: float) -> list[object]:
    """Products of several sizes that reach a share of a GPU's arithmetic."""
    sheet = gpu_named(gpu)
    sizes = [1024 * index for index in range(2, 20)]
    kernels = [Kernel(kind="product", arithmetic="bfloat16", flop=2.0 * n**3, bytes=6.0 * n * n) for n in sizes]
    return [derive.Measured(sheet, one, one.flop / (share * 989e12)) for one in kernels]


def test_a_fit_finds_the_share_that_kernels_reach(derive):
    fit = derive.fit_kernels(_products(derive, "H100", 0.7), LOSSES)
    assert fit.arithmetic == pytest.approx(0.7, rel=0.05)
    assert fit.residual < 0.03
    assert fit.count == 18


def test_a_gpu_that_is_left_out_is_between_those_that_were_measured_and_less_sure(derive):
    measured = [one for gpu, share in (("H100", 0.6), ("H200", 0.8)) for one in _products(derive, gpu, share)]
    fits = derive.fits_of(measured, LOSSES)
    rows, left = derive.known_of(fits, {}, _sources(fits))
    assert left == {}
    by_gpu = {row.get("gpu", ""): row for row in derive.constants_of(rows) if row["source"] != "judged"}
    assert by_gpu["H100"]["arithmetic"] == pytest.approx(0.6, rel=0.05)
    assert by_gpu[""]["arithmetic"] == pytest.approx(math.sqrt(0.6 * 0.8), rel=0.05)
    assert by_gpu["H100"]["spread_arithmetic"] < by_gpu["Hopper"]["spread_arithmetic"] < by_gpu[""]["spread_arithmetic"]
    without = {row.get("gpu", ""): row for row in derive.constants_of(rows, without="H100")}
    assert "H100" not in without
    assert without["Hopper"]["arithmetic"] == pytest.approx(0.8, rel=0.05)
    general = {
        "host_us": 12,
        "host_spread": 0.5,
        "common_spread": 0.1,
        "common_spread_products": 0.1,
        "by_multiprocessor": 0.5,
        **derive.data_of(0.9),
    }
    constants = derive.parsed(derive.constants_of(rows), LOSSES, general)
    assert constants.efficiency_of("product", "16", gpu_named("H100")).arithmetic == by_gpu["H100"]["arithmetic"]


def test_steps_tell_the_shares_of_their_classes(derive):
    """Of two classes in different proportions: half of one's bandwidth, all of the other's."""
    chance = np.random.default_rng(0)
    steps = []
    for number in range(40):
        ideal = chance.uniform(1e-3, 1e-1, 2)
        kinds = [("reduction", "none"), ("pooling", "none")]
        seconds = float(ideal[0] / 0.5 + ideal[1] / 1.0)
        zeros = np.zeros(2)
        ones = np.ones(2)
        steps.append(derive.Step(f"model {number}", "train", seconds, [], kinds, ones, zeros, zeros, ideal))
    found, left = derive.fit_steps(steps, {})
    assert found["reduction", "none"].memory == pytest.approx(0.5, rel=0.1)
    assert found["pooling", "none"].memory == pytest.approx(1.0, rel=0.1)
    assert np.abs(left).max() < 0.05


def test_both_layouts_of_a_model_say_more_of_their_difference(derive):
    """A class in one layout alone, in models whose common error hides it."""
    chance = np.random.default_rng(1)
    steps = []
    zeros = np.zeros(2)
    ones = np.ones(2)
    for number in range(30):
        common = float(np.exp(0.3 * chance.standard_normal()))
        for layout, ideal in (("nchw", np.array([0.1, 0.02])), ("nhwc", np.array([0.1, 0.0]))):
            seconds = common * float(ideal[0] / 0.5 + ideal[1] / 0.25)
            kinds = [("reduction", "none"), ("pooling", "none")]
            steps.append(derive.Step(f"model {number}", "train", seconds, [layout], kinds, ones, zeros, zeros, ideal))
    found, _ = derive.fit_steps(steps, {})
    assert found["pooling", "none"].memory / found["reduction", "none"].memory == pytest.approx(0.5, rel=0.15)
    apart = [replace(step, name=f"{step.name} {step.kernels[0]}") for step in steps]
    assert found["pooling", "none"].memory_error < derive.fit_steps(apart, {})[0]["pooling", "none"].memory_error


def test_the_slopes_of_a_fit_are_those_of_its_residuals(derive):
    """The fit's errors follow from its slopes, so a wrong slope shows in them: steps of one class are an average."""
    ideal = np.array([1e-2])
    ones = np.ones(1)
    zeros = np.zeros(1)
    for count in (4, 16):
        steps = [
            derive.Step(f"model {n}", "train", 0.02, [], [("reduction", "none")], ones, zeros, zeros, ideal)
            for n in range(count)
        ]
        fit = derive.fit_steps(steps, {("reduction", "none"): (0.5, 1.0, 0.5, 10.0)})[0]["reduction", "none"]
        assert fit.memory_error == pytest.approx(derive.STEP_NOISE / np.sqrt(count), rel=0.05)


def test_writing_a_cache_is_taken_apart_from_attention(derive):
    """Attention as vLLM is measured: short sequences with many heads of keys are mostly the cache."""
    gpu = derive.SHEETS["a100_sxm"]
    writes = derive.CacheWrites(0.7, 4.0)
    kernels = []
    for heads, keys_heads, length in [(h, k, n) for h in (8, 32) for k in (1, 8, 32) for n in (512, 1024, 4096, 8192)]:
        for batch in (1, 2, 4, 8):
            kernel = Kernel(
                kind="attention", arithmetic="bfloat16", flop=2.0 * batch * heads * length**2 * 128,
                bytes=4.0 * batch * length * 128 * (heads + keys_heads), sizes=(batch * heads, length, length, 128),
            )  # fmt: skip
            one = derive.Measured(gpu, kernel, 0.0, float(batch * length), 128.0 * keys_heads)
            alone = kernel.flop * derive.effort(kernel, gpu, LOSSES) / gpu.flops("bfloat16") / 0.6
            kernels.append(one._replace(seconds=alone + derive.cache_seconds(one.cached_s, one.blocks_s, writes)))
    fit = derive.fit_kernels(kernels, LOSSES)
    assert fit.arithmetic == pytest.approx(0.6, rel=0.05)
    assert fit.writes.share == pytest.approx(writes.share, rel=0.2)
    blind = derive.fit_kernels([one._replace(tokens=0.0) for one in kernels], LOSSES)
    assert abs(blind.arithmetic / 0.6 - 1) > 2 * abs(fit.arithmetic / 0.6 - 1)
    fitted = derive.losses_of_gpus(kernels)
    losses = derive.attention_losses(fitted)
    assert losses["fed by warps"].turns == pytest.approx(LOSSES["fed by warps"].turns, rel=0.3)  # the floor is not sure
    assert losses[""] == losses["fed by warps"]
    more = {**fitted, "L40S": fitted["A100-80"] + 1.0}
    assert derive.attention_losses(more, without="L40S") == losses
    assert derive.attention_losses(more)[""].turns > losses[""].turns


def test_what_came_from_steps_stays_where_steps_were_not_followed(derive):
    row = {"format": "16", "source": "9 kernels of aiconfigurator"}
    of_steps = {"kind": "b", "format": "16", "memory": 0.3, "source": "400 steps of timm"}
    shipped_rows = [{"kind": "a", "memory": 0.1, **row}, of_steps]
    derived = [
        {"kind": "b", "memory": 0.9, **row},
        {"kind": "c", "memory": 0.5, **row},
        {"kind": "a", "memory": 0.2, **row},
    ]
    found = derive.with_shipped(derived, shipped_rows)
    assert [(one["kind"], one["memory"]) for one in found] == [("a", 0.2), ("b", 0.3), ("c", 0.5)]


def test_models_that_evaluate_give_no_constant(timm):
    names = [f"model{number}" for number in range(500)]
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
    fresh = {row.program.model for pair in draw.fresh for row in pair}
    assert len(fresh) == 60
    assert not fresh & evaluated
    evaluated |= fresh
    assert not evaluated & {row.program.model for row in draw.calibration}
    assert timm.drawn(list(reversed(rows))) is not None
    assert timm.drawn(rows).evaluation == draw.evaluation


def test_a_ratio_of_layouts_has_a_sign_and_a_size(bench):
    misses: list[str] = []
    row = bench.of_layouts("models", [("a", 1.2, 1.1), ("b", 1.2, 0.9), ("c", 0.999, 1.002)], misses)
    assert "1 signs right (1 of 2 over 1 %), 2 within 15 %" in row
    assert [line.split(": ")[1] for line in misses] == ["b", "c"]


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


@needs_published
def test_the_shipped_constants_of_kernels_are_what_the_published_tables_say(derive):
    """The classes that kernels alone tell, without steps of models; `estimate_constants.py --check` holds all."""
    kernels = [
        *derive.gemm_kernels(PUBLISHED / "published/gemm.parquet"),
        *derive.attention_kernels(PUBLISHED / "published/attention.parquet"),
    ]
    losses = derive.attention_losses(derive.losses_of_gpus(kernels))
    for family, of_family in losses.items():
        assert tuple(shipped().attention[family]) == pytest.approx(tuple(of_family), rel=0.01, abs=2e-3), family
    fits = derive.fits_of(kernels, losses)
    known, _ = derive.known_of(fits, {}, _sources(fits))
    found = [row for row in derive.constants_of(known) if row["source"] != "judged"]
    assert {(row["kind"], row["format"]) for row in found} == {("product", "16"), ("attention", "16")}
    for row in found:
        ours = shipped().efficiencies[row["kind"], row["format"], row.get("gpu", "")]
        for name in ("arithmetic", "memory", "spread_arithmetic", "shape", "growth", "watts"):
            assert getattr(ours, name) == pytest.approx(row.get(name, 0.0), rel=0.01, abs=2e-3), (row, name)


def test_a_share_that_falls_with_a_kernel_s_length_says_less_of_another_gpu(derive):
    """Nine of ten draws then hold the share of short kernels and that of long ones."""
    steady = derive.Known(0.6, 0.0, 0.8, 2.5, 0.0, 0.0, 0.1, "a table")
    falling = steady._replace(growth=-0.15)

    def spread(one, prior: float) -> float:
        return derive.merged({"H100": one}, prior)["spread_arithmetic"]

    fall = 0.15 * math.log(derive.GROWS_S[1] / derive.GROWS_S[0])
    assert spread(falling, 0.07) == pytest.approx(math.hypot(spread(steady, 0.07), fall / 2 / 1.645))
    assert spread(steady._replace(growth=0.15), 0.07) == spread(steady, 0.07)
    assert spread(falling, 0.0) == spread(steady, 0.0)  # of that GPU itself


def test_a_sharded_step_of_a_published_model_is_of_eight_ranks(language):
    programs = [step.program for step in language.STEPS]
    assert {step.devices for step in language.STEPS if step.program.is_sharded} == {language.RANKS}
    assert len({program.file for program in programs}) == len(set(programs))


def test_the_book_s_steps_have_each_change_and_all_before_it(book):
    assert [one.program.change for one in book.STEPS] == list(book.CHANGES)
    flash = book.Program("flash")
    assert [flash.has(change) for change in ("tf32", "flash", "compiled")] == [True, True, False]
    assert book.STEPS[-1].ms == pytest.approx(1e3 * 32 * 1024 / 142156)
    for one in book.STEPS:
        with torch.device("meta"):
            model = book.Model(one.program)
        assert sum(p.numel() for p in model.parameters()) == pytest.approx(163e6, rel=0.01)


def test_a_step_is_of_measured_classes_by_its_gpu_work(bench):
    """Products in 16 bit are published for an H100, reductions are not."""
    kernels = {
        "product": Kernel(kind="product", arithmetic="float16", flop=1e12),
        "reduction": Kernel(kind="reduction"),
    }
    for kinds, share in ((("product",), 1.0), (("product", "reduction"), 0.75), (("reduction",), 0.0)):
        items = [SimpleNamespace(kernel=kernels[kind], calls=1.0) for kind in kinds]
        seconds = np.array([[3.0 if kind == "product" else 1.0] * 9 for kind in kinds])
        drawn = SimpleNamespace(launched=items, seconds=seconds)
        assert bench.measured_share(drawn, "H100") == pytest.approx(share)


def test_another_last_digit_is_no_difference_and_another_class_is_one(derive, tmp_path):
    shipped_file = tmp_path / "constants.toml"
    shipped_file.write_text('{kind = "a", memory = 0.531},\n{kind = "b", memory = 0.2},\n')
    same = '{kind = "a", memory = 0.532},\n{kind = "b", memory = 0.2},\n'
    assert derive.differences(shipped_file, same) == []
    for other in (same.replace("0.2", "0.21"), same.replace('"b"', '"c"'), same + "{}\n"):
        assert len(derive.differences(shipped_file, other)) == 1


def _strided(derive, gpu: str, share: float) -> list[object]:
    """Strided kernels of several sizes that reach a share of a GPU's bandwidth."""
    sheet = gpu_named(gpu)
    kernels = [Kernel(kind="strided elementwise", bytes=2.0**20 * size) for size in range(100, 120)]
    return [derive.Measured(sheet, one, one.bytes / (share * sheet.bandwidth)) for one in kernels]


def test_a_share_of_the_bandwidth_falls_with_what_each_multiprocessor_has_of_it(derive):
    """Of two GPUs whose kernels move as much for each multiprocessor: a third one's do so, too."""
    gpus = ("RTX-3090", "H100")
    shares = {gpu: 6.0 / derive.gbs_per_sm(gpu) for gpu in gpus}
    fits = derive.fits_of([one for gpu in gpus for one in _strided(derive, gpu, shares[gpu])], LOSSES)
    known, _ = derive.known_of(fits, {}, _sources(fits))
    power = derive.by_multiprocessor(known["strided elementwise", "none"])
    assert power == pytest.approx(1.0, abs=0.1)
    general = dict.fromkeys(("host_us", "host_spread", "common_spread", "common_spread_products"), 0.1)
    general |= {"by_multiprocessor": power, **derive.data_of(0.9)}
    constants = derive.parsed(derive.constants_of(known), LOSSES, general)
    for gpu in ("A100-80", "B200", "L4"):
        found = constants.efficiency_of("strided elementwise", "none", gpu_named(gpu))
        assert found.memory * derive.gbs_per_sm(gpu) == pytest.approx(6.0, rel=0.1)
    spreads = [
        constants.efficiency_of("strided elementwise", "none", gpu_named(gpu)).spread_memory for gpu in (*gpus, "B200")
    ]
    assert spreads[2] > max(spreads[:2])


def test_each_row_of_the_kernels_of_traces_is_a_kernel_of_today(traced):
    rows = list(traced.read_calls())
    assert {row.gpu for row in rows} == {"H100"}
    assert all(row.seconds >= traced.SHORTEST_NS / 1e9 and kernels_of(row.call) for row in rows)


def _traced(traced, share: float, calls: int, trace: str) -> object:
    """A map of 1 GiB that reaches a share of an H100's bandwidth."""
    one = TensorSpec(shape=(2**28,), strides=(1,), dtype="bfloat16")
    call = OperatorCalls(
        name="aten.neg.default", inputs=(one,), outputs=(one,), is_view=False, flop=0, calls=1, phase="forward",
        file=None, line=None,
    )  # fmt: skip
    return traced.TracedCall("H100", call, 2**30 / (share * gpu_named("H100").bandwidth), calls, trace)


def test_programs_say_how_far_a_class_is_from_one_to_another(derive, traced, monkeypatch):
    rows = [_traced(traced, share, 3, name) for share, name in ((0.8, "a"), (0.8, "b"), (0.5, "c"))]
    monkeypatch.setattr(derive.kernels_of_traces, "read_calls", lambda: rows)
    apart = math.log(0.8 / 0.5)
    expected = math.sqrt((2 * (apart / 2) ** 2 + apart**2) / 3)
    assert derive.spreads_of_programs() == {("elementwise", "none", "H100"): pytest.approx(expected)}
    monkeypatch.setattr(derive.kernels_of_traces, "read_calls", lambda: rows[:2])
    assert derive.spreads_of_programs() == {}


def test_where_programs_were_traced_their_spread_stands_for_the_common_one():
    constants = shipped()

    def spread(common: float, kind: str = "elementwise") -> float:
        efficiency = replace(constants.efficiency_of("elementwise", "none", gpu_named("H100")), common=common)
        return constants.common_of(kind, efficiency)

    assert spread(0.0) == spread(10.0) == constants.common_spread
    assert spread(0.05) == 0.05
    assert spread(0.05, "product") == constants.common_spread_products
    assert 0 < constants.efficiency_of("elementwise", "none", gpu_named("H100")).common < constants.common_spread
    assert constants.efficiency_of("elementwise", "none", gpu_named("H200")).common == 0


def test_how_unsure_shapes_are_comes_from_kernels_and_not_from_steps(derive):
    alone = derive.Known(0.8, 0.0, 0.8, 2.5, 0.05, 0.05, 0.1, "60 kernels of a table", in_vain=0.3)
    of_steps = alone._replace(source=f"9 {derive.OF_STEPS}", in_vain=0.0)
    assert derive.merged({"V100": alone, "RTX-3090": of_steps}, 0.1)["shape_in_vain"] == pytest.approx(0.3)
    assert "shape_in_vain" not in derive.merged({"RTX-3090": of_steps}, 0.1)


def test_deviations_grow_with_what_is_computed_in_vain(derive):
    chance = np.random.default_rng(0)
    in_vain = chance.uniform(0, 2, 4000)
    left = chance.normal(0, np.sqrt(0.05**2 + 0.1**2 * in_vain))
    plain, grown = derive.deviations(left, in_vain)
    assert plain == pytest.approx(0.05, abs=0.02)
    assert grown == pytest.approx(0.1, abs=0.02)
