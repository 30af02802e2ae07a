"""What a prediction records for estimates: FLOP, the order of calls and syncs, the same in both modes of inference."""

import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everyone knows it by

import idioms
from steptrace.documents.estimate import COPIES_WAIT, SYNC, WAIT_FOR_COPIES
from steptrace.estimate.launches import launches
from steptrace.predict import Syncs, predict_syncs


def _convolution_backward(layer: nn.Module, images: torch.Tensor) -> int:
    """FLOP of the backward pass of a convolution, as they are recorded."""
    with predict_syncs() as syncs:
        layer.cuda()
        given = images.cuda().requires_grad_()
        layer(given).sum().backward()
        layer(given.detach()).sum().backward()
        return [call.flop for call in syncs.operators if "convolution_backward" in call.name]


@pytest.mark.parametrize("groups", [1, 4, 128])
@pytest.mark.parametrize("transposed", [False, True])
def test_each_gradient_of_a_convolution_multiplies_as_often_as_its_forward_pass(groups: int, *, transposed: bool):
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = kind(128, 256, 3, padding=1, groups=groups, bias=False)
    # Each output of a convolution, and each input of a transposed one, takes part in 3 x 3 products a channel of its
    # group on the other side.
    forward = 2 * 2 * 8 * 8 * 128 * 256 * 9 // groups
    assert _convolution_backward(layer, torch.ones(2, 128, 8, 8)) == [2 * forward, forward]


def _recorded(mode: Any, codes: list[str]) -> dict[str, tuple[str, int, Counter[str]]]:
    """Error, syncs and launches by operator of each idiom's second run."""
    seen = {}
    with warnings.catch_warnings(), predict_syncs() as syncs:
        warnings.simplefilter("ignore")
        for code, run in idioms.steps(codes):
            with mode():
                run()
                syncs.reset()
                error = run()
            launched: Counter[str] = Counter()
            for call in syncs.operators:
                launched[call.name] += launches(call) * call.calls
            seen[code] = (error, syncs.total, +launched)
    return seen


#: What PyTorch itself runs in another way there, on a CPU too: matrix products of weights that were made there, and
#: nested tensors, which it refuses.
OTHERWISE_IN_INFERENCE_MODE = {
    "nn.Transformer(4, 2, 1, 1, 8, batch_first=True, device=d)(seq, seq)",
    "torch.nested.nested_tensor_from_jagged(x, i[:2])",
}


def test_every_idiom_runs_the_same_operators_in_inference_mode():
    codes = [idiom.code for idiom in idioms.read_table()]
    plain, inference = (_recorded(mode, codes) for mode in (torch.no_grad, torch.inference_mode))
    without_error = [code for code in codes if not plain[code][0]]
    assert len(without_error) > 400
    assert {code for code in without_error if inference[code] != plain[code]} == OTHERWISE_IN_INFERENCE_MODE


@pytest.mark.parametrize(
    ("function", "operators"),
    [
        (lambda x: F.dropout(x, 0.5, training=False), []),
        (lambda x: F.interpolate(x, scale_factor=2), ["upsample_nearest2d"]),
        (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), ["upsample_bilinear2d"]),
        (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), ["upsample_bicubic2d"]),
        (lambda x: F.silu(x), ["silu"]),
        (lambda x: F.group_norm(x, 2), ["native_group_norm"]),
        (lambda x: F.adaptive_avg_pool2d(x, 1), ["mean"]),
        (lambda x: F.scaled_dot_product_attention(x, x, x), ["_scaled_dot_product_efficient_attention"]),
        (lambda x: F.one_hot(x[0, 0, 0].long().clamp(0, 3), 4), None),
    ],
)
def test_a_function_is_what_cuda_runs_in_inference_mode(function, operators):
    seen = []
    for mode in (torch.no_grad, torch.inference_mode):
        with predict_syncs() as syncs, mode():
            x = torch.ones(2, 4, 8, 8, device="cuda")
            syncs.reset()
            function(x)
            seen.append([call.name.split(".")[1] for call in syncs.operators])
    assert seen[0] == seen[1]
    assert operators is None or seen[1] == operators


def _queue(syncs: Syncs) -> list[str]:
    names = [call.name.split(".")[1] for call in syncs.operators]
    return ["sync" if place == SYNC else names[place] for place in syncs.queue]


def test_the_queue_holds_calls_and_syncs_in_their_order():
    with predict_syncs() as syncs:
        x = torch.ones(4, device="cuda")
        syncs.reset()
        y = x + 1
        y.sum().item()
        y = x + 1
        torch.cuda.synchronize()
        y.relu_()
        y[y > 0].cpu()
        assert _queue(syncs) == [
            "add", "sum", "_local_scalar_dense", "sync", "add", "sync", "relu_", "gt", "index", "sync", "_to_copy",
            "sync",
        ]  # fmt: skip
        assert syncs.queue.count(SYNC) == syncs.total
        syncs.reset()
        assert syncs.queue == ()


@pytest.mark.parametrize(
    ("numbers", "pin", "waits"), [(64 * 1024, False, 1), (64 * 1024, True, 0), (16 * 1024, False, 0)]
)
def test_the_host_stays_with_a_large_copy_from_memory_that_is_not_pinned(numbers: int, *, pin: bool, waits: int):
    """The driver copies it through a buffer of its own: no sync by PyTorch, but time in an estimate."""
    with predict_syncs() as syncs:
        batch = torch.ones(numbers)
        (batch.pin_memory() if pin else batch).to("cuda", non_blocking=True)
        assert (syncs.total, syncs.queue.count(SYNC)) == (0, waits)


def _waits_between_streams(syncs: Syncs) -> list[tuple[str, Any]]:
    """The copies on other streams and the waits between streams, in their order."""
    calls = [syncs.operators[place] for place in syncs.queue if place != SYNC]
    named = [(call.name, call.arguments) for call in calls]
    return [(name, args.get("later")) for name, args in named if args.get("other_stream") or "wait" in name]


def test_a_stream_s_wait_for_a_copy_leaves_out_the_copies_launched_after_it():
    """As a loader that copies one batch ahead, and starts the next copy before it hands over the last one."""
    with predict_syncs() as syncs:
        side = torch.cuda.Stream()
        copied = []
        for _ in range(2):
            with torch.cuda.stream(side):
                torch.ones(4).pin_memory().to("cuda", non_blocking=True)
                copied.append(side.record_event())
        torch.cuda.current_stream().wait_event(copied[0])
        torch.cuda.current_stream().wait_stream(side)
        side.wait_stream(torch.cuda.current_stream())
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        copy = ("aten._to_copy.default", None)
        assert _waits_between_streams(syncs) == [
            copy,
            copy,
            (WAIT_FOR_COPIES, 1),
            (WAIT_FOR_COPIES, 0),
            (COPIES_WAIT, None),
        ]


def test_a_program_without_copies_on_other_streams_has_no_waits_for_them():
    with predict_syncs() as syncs:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.ones(4, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        assert _waits_between_streams(syncs) == []
