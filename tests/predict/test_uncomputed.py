"""Large tensors of the virtual device have shapes and no values; what is read from them is said."""

import gc
import io

import pytest
import torch
from torch import Tensor, nn

from steptrace.engine.frames import trace_file_name
from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import gpu_named
from steptrace.predict import Syncs, memory, predict_syncs

SIDE = 512  # above the size from which on a tensor has no values


def test_a_product_of_large_matrices_takes_no_memory_and_no_time():
    with predict_syncs() as syncs:
        a = torch.rand(200_000, 200_000, device="cuda")
        assert (a @ a).shape == (200_000, 200_000)
    assert (syncs.total, syncs.assumed) == (0, [])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_computes_nothing_large_in_16_bits(dtype):
    """On a CPU without units for it that takes minutes."""
    with predict_syncs() as syncs, torch.autocast("cuda", dtype=dtype):
        layer = nn.Linear(100_000, 100_000, device="cuda")
        out = layer(torch.rand(100_000, 100_000, device="cuda"))
    assert (out.dtype, out.shape, syncs.assumed) == (dtype, (100_000, 100_000), [])


def test_labels_and_masks_made_from_data_are_exact():
    images = torch.arange(SIDE * SIDE).float().view(SIDE, SIDE)
    labels = torch.arange(SIDE) % 3
    with predict_syncs() as syncs:
        images = images.to("cuda")
        labels = labels.to("cuda")
        assert images[images < 10].shape == (10,)
        assert len(labels[labels == 0].unique()) == 1
        assert int(labels.sum()) == sum(i % 3 for i in range(SIDE))
    assert syncs.assumed == []


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (lambda loss, _: loss.item(), "an assumed value is read"),
        (lambda _, large: large.cpu(), "values that were not computed are copied to the host"),
        (lambda _, large: large[large > 0], "how many elements are selected was not computed"),
        (lambda _, large: large.nonzero(), "how many elements are selected was not computed"),
        (lambda loss, _: loss.nonzero(), "how many elements are selected was not computed"),
        (lambda _, large: large.masked_select(large > 0), "how many elements are selected was not computed"),
        (lambda _, large: large.unique(), "a size was not computed"),
        (lambda _, large: large.relu().tolist(), "values that were not computed are copied to the host"),
    ],
)
def test_what_was_not_computed_is_listed_with_its_line(read, reason):
    with predict_syncs() as syncs:
        large = torch.rand(SIDE, SIDE, device="cuda")
        read(large.sum(), large)
    assert reason in {place.reason for place in syncs.assumed}
    assert {place.file for place in syncs.assumed} == {__file__}


def test_what_is_written_to_gets_the_shape_of_what_was_not_computed():
    with predict_syncs():
        large = torch.rand(SIDE, SIDE, device="cuda")
        made = torch.empty(0, device="cuda")
        torch.add(large, 1, out=made)
        assert made.shape == (SIDE, SIDE)
        assert (made + 1).shape == (SIDE, SIDE)


def test_a_model_that_was_not_computed_is_saved_and_loaded():
    with predict_syncs() as syncs:
        model = nn.Linear(SIDE, SIDE).cuda()
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        model.load_state_dict(torch.load(file))
        assert model.weight.is_cuda
    assert [(place.op, place.reason) for place in syncs.assumed] == [
        ("torch.save", "values that were not computed are saved")
    ]


def test_a_step_that_checks_its_gradients_goes_on():
    with predict_syncs() as syncs:
        model = nn.Sequential(nn.Linear(SIDE, SIDE), nn.ReLU(), nn.Linear(SIDE, 1)).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            syncs.reset()
            model(torch.rand(64, SIDE, device="cuda")).sum().backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            assert torch.isfinite(norm)
            optimizer.step()
            optimizer.zero_grad()
    assert syncs.total == 2
    assert {call.phase for call in syncs.operators} == {"forward", "backward", "optimizer", "other"}


def test_a_large_weight_is_not_initialised_on_the_host_and_a_small_one_is():
    large = nn.Parameter(torch.zeros(2048, 2048))
    small = nn.Parameter(torch.zeros(8, 8))
    with predict_syncs():
        nn.init.uniform_(large, 1.0, 2.0)
        nn.init.uniform_(small, 1.0, 2.0)
    assert small.min() >= 1
    assert large.count_nonzero() == 0


@pytest.mark.parametrize(
    ("gpu", "dtype", "masked", "name"),
    [
        ("H100", torch.bfloat16, False, "aten._scaled_dot_product_cudnn_attention.default"),
        ("H100", torch.float32, False, "aten._scaled_dot_product_efficient_attention.default"),
        ("H100", torch.bfloat16, True, "aten._scaled_dot_product_cudnn_attention.default"),
        ("L4", torch.bfloat16, False, "aten._scaled_dot_product_flash_attention.default"),
        ("L4", torch.bfloat16, True, "aten._scaled_dot_product_efficient_attention.default"),
    ],
)
def test_attention_is_the_operator_that_a_gpu_takes(gpu, dtype, masked, name):
    with predict_syncs(driver=driver_facts(gpu_named(gpu))) as syncs:
        q = torch.rand(4, 8, 128, 64, device="cuda", dtype=dtype, requires_grad=True)
        mask = torch.ones(128, 128, dtype=torch.bool, device="cuda") if masked else None
        nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask).sum().backward()
    flop = {call.name: call.flop for call in syncs.operators}
    assert flop[name] == 4 * 4 * 8 * 128 * 128 * 64  # two products of 2 FLOP an element
    assert sum("dot_product" in called for called in flop) == 2
    assert q.grad.shape == q.shape


def test_operators_are_counted_by_shape_phase_and_line():
    with predict_syncs() as syncs:
        a = torch.rand(128, 512, device="cuda", dtype=torch.bfloat16)
        b = torch.rand(512, 1024, device="cuda", dtype=torch.bfloat16)
        syncs.reset()
        for _ in range(3):
            a @ b
        a.t()  # a view launches nothing
    (call,) = syncs.operators
    assert (call.name, call.calls, call.phase, call.file) == (
        "aten.mm.default",
        3,
        "forward",
        trace_file_name(__file__),
    )
    assert call.flop == 2 * 128 * 512 * 1024
    assert [spec.shape for spec in (*call.inputs, *call.outputs)] == [(128, 512), (512, 1024), (128, 1024)]
    assert {spec.dtype for spec in call.inputs} == {"bfloat16"}


def test_the_peak_is_what_is_alive_at_once_in_blocks_of_the_caching_allocator():
    with predict_syncs() as syncs:
        syncs.reset()
        before = syncs.peak_memory_bytes
        a = torch.empty(2**20, device="cuda")  # 4 MiB
        b = torch.empty(2**20, device="cuda")
        del a
        c = torch.empty(100, device="cuda")
        assert syncs.peak_memory_bytes - before == 8 * 2**20
        del b, c
        syncs.reset()
        assert syncs.peak_memory_bytes == before


def test_what_an_earlier_prediction_left_in_a_cycle_is_not_in_the_peak():
    def allocated() -> int:
        with predict_syncs() as syncs:
            before = syncs.peak_memory_bytes
            cycle: list[object] = [torch.empty(2**20, device="cuda")]
            cycle.append(cycle)
        return before

    gc.collect()
    gc.disable()
    try:
        assert allocated() == allocated()
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("nbytes", "block"),
    [
        (1, 512),
        (513, 1024),
        (2**20 + 1, 2**20 + 512),
        (11 * 2**20, 12 * 2**20),  # the rest of 1 MiB is not split off
        (21 * 2**19, 21 * 2**19),
    ],
)
def test_blocks_are_rounded_as_cuda_rounds_them(nbytes, block):
    assert memory.block_bytes(nbytes) == block


def test_a_prediction_that_is_over_records_nothing():
    with predict_syncs():
        large = torch.rand(SIDE, SIDE, device="cuda")
    assert Syncs.active is None
    assert large.cpu().shape == (SIDE, SIDE)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.add(1),
        lambda x: (x.add(1.5), x.to(torch.float16).add(1), x.add(True)),
        lambda x: x.split(2, dim=0),
        lambda x: x.sort(dim=1),
        lambda x: x.t().softmax(1),
        lambda x: torch.ops.aten._unsafe_view(x, [x.shape[0] * 2, -1]),
        lambda x: (x @ x.t(), x.sum(1), x.mean()),
    ],
)
def test_a_call_that_comes_again_has_results_like_the_first(function):
    def described(x: Tensor) -> list[object]:
        leaves = torch.utils._pytree.tree_leaves(function(x))
        return [(leaf.shape, leaf.stride(), leaf.dtype, leaf.is_cuda) for leaf in leaves]

    with predict_syncs() as syncs:
        first = described(torch.rand(512, 512, device="cuda"))
        peak = syncs.peak_memory_bytes
        syncs.reset()
        assert described(torch.rand(512, 512, device="cuda")) == first
        assert syncs.peak_memory_bytes <= peak
        assert described(torch.rand(256, 1024, device="cuda")) != first


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_squares_of_assumed_values_do_not_overflow_in_16_bits(dtype: torch.dtype) -> None:
    """As a loss scaler of a program's own asks for them: real gradients are small enough at some scale."""
    with predict_syncs() as syncs:
        large = torch.randn(2**17, device="cuda", dtype=dtype)
        gradients = [large[: 2**15] * large[2**15 : 2**16] for _ in range(200)]  # small, of what has no values
        total = sum(gradient.square().sum() for gradient in gradients)
        assert 0 < float(total) < torch.finfo(torch.float16).max
        assert float(large.sum()) > 0
        assert float((total * 2.0**20).sum()) > 0  # at any scale
        assert torch.isfinite(total * 2.0**20)
    assert syncs.assumed


def test_assumed_values_stay_finite_unless_the_program_makes_them_infinite() -> None:
    with predict_syncs():
        values = torch.randn(2**17, device="cuda").view(2, -1).sum(1)
        assert torch.isfinite(1 / (values - values[0])).all()  # all are filled alike, which real values are not
        assert torch.isfinite((values - values.mean()) / values.std()).all()
        masked = values.masked_fill(torch.tensor([True, False], device="cuda"), float("-inf"))
        assert masked.isinf().tolist() == [True, False]
        assert (masked + 1).isinf().tolist() == [True, False]
        assert torch.where(values > 5, values, torch.full_like(values, float("inf"))).isinf().all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float8_e5m2fnuz])
def test_assumed_values_of_8_bits_are_bounded_as_wider_ones_are(dtype):
    with predict_syncs():
        assumed = torch.randn(300, 300, device="cuda").sum() * torch.full((4, 4), 1e30, device="cuda")
        narrow = assumed.to(dtype).detach()
        assert bool(narrow.float().isfinite().all())


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:Sparse invariant")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_product_of_assumed_sparse_values_that_overflows_is_bounded(layout):
    with predict_syncs():
        assumed = torch.randn(300, 300, device="cuda").sum() * torch.full((4, 4), 1e30, device="cuda")
        assert bool((assumed.to_sparse(layout=layout) @ assumed).isfinite().all())


def _casts(syncs: Syncs, shape: tuple[int, ...], dtype: str) -> int:
    """How often a tensor of this shape on the device was cast to a type."""
    casts = [call for call in syncs.operators if call.name == "aten._to_copy.default" and call.inputs]
    return sum(call.calls for call in casts if call.inputs[0].shape == shape and call.outputs[0].dtype == dtype)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_autocast_casts_a_weight_once_in_a_context(mode):
    with predict_syncs() as syncs:
        layer, rows = nn.Linear(64, 64, bias=False).cuda(), torch.zeros(8, 64, device="cuda")
        for _ in range(2):
            with torch.autocast("cuda", torch.float16), mode():
                layer(layer(layer(rows)).float())
    assert (_casts(syncs, (64, 64), "float16"), _casts(syncs, (8, 64), "float16")) == (2, 4)


def test_a_weight_s_gradient_comes_through_its_one_cast():
    with predict_syncs() as syncs:
        layer, rows = nn.Linear(64, 64, bias=False).cuda(), torch.zeros(8, 64, device="cuda")
        with torch.autocast("cuda", torch.float16):
            with torch.no_grad():
                layer(rows)
            layer(layer(rows)).sum().backward()
        assert layer.weight.grad.dtype == torch.float32
    assert (_casts(syncs, (64, 64), "float16"), _casts(syncs, (64, 64), "float32")) == (1, 1)
