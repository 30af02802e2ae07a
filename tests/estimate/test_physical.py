"""No step that was published is shorter than its kernels at the full figures of the GPU's data sheet.

A fault that multiplies FLOP or bytes, such as of grouped convolutions, shows here as an impossible step. The published
steps are timm's (huggingface/pytorch-image-models, results/benchmark-train-amp-*-pt112-cu113-rtx3090.csv): training in
AMP with SGD at 224 x 224 pixels on an RTX 3090.
"""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benches import bench_module
from steptrace.documents.base import convert
from steptrace.documents.prediction import predicted_step
from steptrace.documents.probe import Prediction as Followed
from steptrace.estimate.drawn import FollowedStep
from steptrace.estimate.gpus import gpu_named
from steptrace.estimate.step import estimate_step, followed_step
from steptrace.estimate.times import ideal_seconds
from steptrace.estimate.work import kernels_of
from steptrace.predict import Prediction, predict_syncs


def _unit(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))


class Inverted(nn.Module):
    """MobileNetV2's block: 1 x 1 to more channels, depthwise 3 x 3, 1 x 1 to fewer."""

    def __init__(self, inputs: int, outputs: int, stride: int, times: int) -> None:
        super().__init__()
        inner = inputs * times
        first = [_unit(inputs, inner)] if times > 1 else []
        last = nn.Sequential(nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.body = nn.Sequential(*first, _unit(inner, inner, 3, stride, inner), last)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images of the same number."""
        return x + self.body(x) if self.adds else self.body(x)


def mobilenet_v2() -> nn.Module:
    """MobileNetV2 of width 1 (Sandler et al., 2018), 3.5 million parameters."""
    blocks: list[nn.Module] = [_unit(3, 32, 3, 2)]
    inputs = 32
    for times, outputs, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for number in range(count):
            blocks.append(Inverted(inputs, outputs, stride if number == 0 else 1, times))
            inputs = outputs
    return nn.Sequential(*blocks, _unit(320, 1280), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


def resnext_50() -> nn.Module:
    """ResNeXt-50 of 32 groups: ResNet-50 with a wider, grouped 3 x 3 convolution, 25 million parameters."""

    class Block(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            outputs = 2 * width
            self.body = nn.Sequential(
                _unit(inputs, width), _unit(width, width, 3, stride, 32), nn.Conv2d(width, outputs, 1, bias=False),
                nn.BatchNorm2d(outputs),
            )  # fmt: skip
            same = stride == 1 and inputs == outputs
            self.shortcut = nn.Identity() if same else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )  # fmt: skip

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.body(x) + self.shortcut(x))

    blocks: list[nn.Module] = [_unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for count, width, stride in ((3, 128, 1), (4, 256, 2), (6, 512, 2), (3, 1024, 2)):
        for number in range(count):
            blocks.append(Block(inputs, width, stride if number == 0 else 1))
            inputs = 2 * width
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def _followed(model: Callable[[], nn.Module], batch: int, *, channels_last: bool) -> FollowedStep:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    with predict_syncs() as syncs:
        network = model().cuda().to(memory_format=layout)  # type: ignore[call-overload]
        images = torch.empty(batch, 3, 224, 224, device="cuda").contiguous(memory_format=layout)
        labels = torch.zeros(batch, dtype=torch.long, device="cuda")
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, foreach=False)
        for _ in range(2):
            syncs.reset()
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                output = network(images)
            nn.functional.cross_entropy(output, labels).backward()
            optimizer.step()
            torch.cuda.synchronize()
        return followed_step(predicted_step([convert(Prediction.so_far(syncs).to_json(), Followed)]))


PUBLISHED = [
    ("resnet50", 512, False, 618.983),
    ("resnet50", 512, True, 419.528),
    ("mobilenetv2_100", 512, False, 278.633),
    ("mobilenetv2_100", 512, True, 220.563),
    ("resnext50_32x4d", 384, False, 577.966),
    ("resnext50_32x4d", 384, True, 382.776),
]


@pytest.mark.parametrize(("name", "batch", "channels_last", "ms"), PUBLISHED)
def test_a_published_step_takes_longer_than_its_kernels_at_the_data_sheet(name, batch, ms, *, channels_last):
    resnet_50 = bench_module("gpu_steps").resnet_50
    models = {"resnet50": resnet_50, "mobilenetv2_100": mobilenet_v2, "resnext50_32x4d": resnext_50}
    followed = _followed(models[name], batch, channels_last=channels_last)
    gpu = gpu_named("RTX-3090")
    kernels = [(call.calls, kernel) for call in followed.operators for kernel in kernels_of(call)]
    ideal_ms = 1e3 * sum(calls * max(ideal_seconds(kernel, gpu)) for calls, kernel in kernels)
    assert 0.4 * ms < ideal_ms < ms
    result = estimate_step(followed, gpu)
    assert result.step_ms is not None
    assert result.step_ms[0] > 0.6 * ms
    assert result.step_ms[1] < 2 * ms
