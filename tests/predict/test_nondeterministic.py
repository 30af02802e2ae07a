"""Under `torch.use_deterministic_algorithms(True)` a prediction fails, or warns, where a GPU does."""

import re
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from steptrace.predict import nondeterministic, predict_syncs


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def ones(*size: int, **options) -> torch.Tensor:
    return torch.ones(size, device="cuda", **options)


def positions(*size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.long, device="cuda")


def differentiate(compute, *size: int) -> None:
    compute(ones(*size, requires_grad=True)).sum().backward()


def interpolated(mode: str, *size: int):
    return lambda: differentiate(lambda x: torch.ops.aten.__getattr__(mode)(x, size, False), 2, 3, *([4] * len(size)))


#: Calls that CUDA has no deterministic form of, and the start of its message.
REFUSED = {
    "adaptive_avg_pool2d_backward_cuda": lambda: differentiate(torch.nn.AdaptiveAvgPool2d(2), 2, 3, 6, 6),
    "adaptive_avg_pool3d_backward_cuda": lambda: differentiate(torch.nn.AdaptiveAvgPool3d(2), 2, 3, 6, 6, 6),
    "adaptive_max_pool2d_backward_cuda": lambda: differentiate(torch.nn.AdaptiveMaxPool2d(2), 2, 3, 6, 6),
    "adaptive_max_pool3d_backward_cuda": lambda: differentiate(torch.nn.AdaptiveMaxPool3d(2), 2, 3, 6, 6, 6),
    "avg_pool3d_backward_cuda": lambda: differentiate(torch.nn.AvgPool3d(2), 2, 3, 4, 4, 4),
    "fractional_max_pool2d_backward_cuda": lambda: differentiate(
        torch.nn.FractionalMaxPool2d(2, output_ratio=0.5), 2, 3, 6, 6
    ),
    "fractional_max_pool3d_backward_cuda": lambda: differentiate(
        torch.nn.FractionalMaxPool3d(2, output_ratio=0.5), 2, 3, 6, 6, 6
    ),
    "max_unpooling2d_forward_out": lambda: functional.max_unpool2d(ones(1, 1, 2, 2), positions(1, 1, 2, 2), 2),
    "max_unpooling3d_forward_out": lambda: functional.max_unpool3d(ones(1, 1, 2, 2, 2), positions(1, 1, 2, 2, 2), 2),
    "upsample_linear1d_backward_out_cuda": interpolated("upsample_linear1d", 8),
    "upsample_bilinear2d_backward_out_cuda": interpolated("upsample_bilinear2d", 8, 8),
    "upsample_bicubic2d_backward_out_cuda": interpolated("upsample_bicubic2d", 8, 8),
    "upsample_trilinear3d_backward_out_cuda": interpolated("upsample_trilinear3d", 8, 8, 8),
    "reflection_pad1d_backward_out_cuda": lambda: differentiate(torch.nn.ReflectionPad1d(1), 2, 3, 4),
    "reflection_pad2d_backward_cuda": lambda: differentiate(torch.nn.ReflectionPad2d(1), 2, 3, 4, 4),
    "reflection_pad3d_backward_out_cuda": lambda: differentiate(torch.nn.ReflectionPad3d(1), 2, 3, 4, 4, 4),
    "nll_loss2d_forward_out_cuda_template": lambda: functional.cross_entropy(ones(2, 3, 4, 4), positions(2, 4, 4)),
    "ctc_loss_backward_gpu": lambda: differentiate(
        lambda x: functional.ctc_loss(
            x.log_softmax(2), positions(2, 3) + 1, torch.tensor([8, 7]), torch.tensor([3, 2])
        ),
        8, 2, 5,
    ),
    "embedding_bag_backward_cuda_max": lambda: differentiate(
        lambda x: functional.embedding_bag(positions(2, 3), x, mode="max"), 5, 4
    ),
    "grid_sampler_2d_backward_cuda": lambda: differentiate(
        lambda x: functional.grid_sample(x, ones(1, 2, 2, 2), align_corners=False), 1, 1, 3, 3
    ),
    "cumsum_cuda_kernel": lambda: ones(4).cumsum(0),
    "put_": lambda: ones(4).put_(positions(2), ones(2), accumulate=True),
    "index_reduce_cuda": lambda: ones(4).index_reduce(0, positions(2), ones(2), "prod"),
    "scatter_reduce_cuda_prod_": lambda: ones(4).scatter_reduce(0, positions(2), ones(2), "prod"),
    "_histc_cuda with floating point input": lambda: torch.histc(ones(4), 4, 0, 1),
    "_bincount_cuda": lambda: torch.bincount(positions(4), ones(4)),
    "median CUDA with indices output": lambda: ones(4).median(0),
}  # fmt: skip


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cuda_has_no_deterministic_form_of_fails_by_cuda_s_name(name):
    with predict_syncs(), pytest.raises(RuntimeError, match=f"^{re.escape(name)} does not have a deterministic"):
        REFUSED[name]()


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize(
    "compute",
    [
        lambda: ones(4, dtype=torch.int32).cumsum(0),
        lambda: ones(4).scatter_add(0, positions(2), ones(2)),
        lambda: ones(4).scatter_reduce(0, positions(2), ones(2), "sum"),
        lambda: ones(4).scatter_reduce(0, positions(2), ones(2), "amax"),
        lambda: ones(4).index_add(0, positions(2), ones(2)),
        lambda: ones(4).median(),
        lambda: ones(4).kthvalue(2),
        lambda: torch.bincount(positions(4)),
        lambda: functional.cross_entropy(ones(2, 3), positions(2)),
        lambda: functional.cross_entropy(ones(2, 3, 4, 4), positions(2, 4, 4), reduction="none"),
        lambda: differentiate(torch.nn.MaxPool3d(2), 2, 3, 4, 4, 4),
        lambda: differentiate(torch.nn.ReplicationPad2d(1), 2, 3, 4, 4),
        lambda: differentiate(lambda x: functional.interpolate(x, size=8, mode="bilinear"), 2, 3, 4, 4),
        lambda: differentiate(lambda x: functional.embedding_bag(positions(2, 3), x, mode="sum"), 5, 4),
        lambda: ones(4, 4) @ ones(4, 4),
    ],
)
def test_what_cuda_computes_in_one_order_does_not_fail(compute):
    with predict_syncs():
        compute()


def test_without_the_setting_nothing_fails_and_warnings_stay_warnings():
    with predict_syncs():
        ones(4).cumsum(0)
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            with pytest.warns(UserWarning, match="cumsum_cuda_kernel"):
                ones(4).cumsum(0)
        finally:
            torch.use_deterministic_algorithms(False)


def test_each_operator_of_pytorch_that_is_named_exists():
    for name in nondeterministic.NONDETERMINISTIC:
        namespace, _, packet = name.partition("::")
        assert namespace != "aten" or hasattr(torch.ops.aten, packet), name
