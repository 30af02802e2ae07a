"""Steps of vision models, as their projects publish them, for estimates to be held to.

    python bench/published_vision_steps.py --out FOLDER [--at-most N]

All were measured in float32 on a V100 (SXM2), by cuDNN's quickest algorithms. No constant was fitted to these steps.

- facebookresearch/pycls (MODEL_ZOO.md at commit 1caf15bb; PyTorch 1.6): RegNets, ResNets, ResNeXts and EfficientNets.
  Inference of 64 images, and training on eight GPUs: hours of 100 epochs of ImageNet. Models are timm's.
- pytorch/vision (docs/source/models.rst, pull request 937; PyTorch 1.1): detectors with a ResNet-50 and a pyramid of
  features, two images on each of eight GPUs, and the most memory. Models are torchvision's. Most images of COCO have
  640 x 480 pixels, which become 1066 x 800; the largest become 1333 x 800, and these set the memory.
- facebookresearch/detectron2 (MODEL_ZOO.md at commit 02478d2e; PyTorch 1.3): Faster R-CNN and RetinaNet with ResNets,
  two images on each of eight GPUs, and the most memory. Models are torchvision's. The short side of its images is 640
  to 800 pixels, on average 720. Detectors of masks and points are left out: how many boxes their heads get follows
  from values that the virtual GPU does not have.
- open-mmlab/mmsegmentation (configs/fcn/README.md at commit 02e04cc2): FCN with dilated ResNets. Inference of one image
  of 1024 x 2048 pixels, and the most memory of training with two images of 512 x 1024. Models are written here.

Needs timm and torchvision (pip install timm torchvision). Each program is followed once, to a file in FOLDER.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist

import followed_programs

GPU: Final = "V100-SXM2"
RANKS: Final = 8
#: Images of ImageNet, epochs and images of a step of inference in pycls's tables.
IMAGES = 1_281_167
EPOCHS = 100
INFERRED = 64
#: Sizes of images in pixels: of EfficientNets, and of detectors for a usual step and for the most memory.
OF_EFFICIENT_NETS: Final = {"efficientnet_b0": 224, "efficientnet_b2": 260, "efficientnet_b4": 380}
USUAL = (800, 1066)
LARGEST = (800, 1333)
#: The same of detectron2, which scales images at random.
AVERAGE = (720, 960)
#: Of FCN: images in training and in inference, and classes.
CROP = (512, 1024)
WHOLE = (1024, 2048)
CLASSES = 19


class Program(NamedTuple):
    """A network, the images of a batch on one GPU, their height and width, and whether it trains."""

    network: str
    batch: int
    height: int
    width: int
    part: str

    @property
    def file(self) -> str:
        """The name of the file that holds its operators."""
        return f"{'-'.join(map(str, self))}.json.gz"

    @property
    def trains(self) -> bool:
        """Whether it is a training step."""
        return self.part == "train"


class Published(NamedTuple):
    """A step that was published: its program, GPUs, milliseconds and GiB of memory, where they are said."""

    program: Program
    source: str
    devices: int
    ms: float | None = None
    memory_gib: float | None = None

    @property
    def gpu(self) -> str:
        """The GPU that it was measured on."""
        return GPU

    @property
    def kind(self) -> str:
        """The row of the table that it belongs to."""
        return f"{self.source}, {'training' if self.program.trains else 'inference'}, {self.devices} {GPU}"


#: By timm's name: images of a batch on eight GPUs, milliseconds of inference, hours of training.
PYCLS: Final[Mapping[str, tuple[int, float, float]]] = {
    "regnetx_004": (1024, 15, 3.9), "regnetx_016": (1024, 33, 8.7), "regnetx_040": (512, 69, 17.1),
    "regnetx_080": (512, 94, 22.6), "regnetx_160": (512, 168, 39.7), "regnetx_320": (256, 318, 76.9),
    "regnety_004": (1024, 19, 5.1), "regnety_016": (1024, 39, 10.1), "regnety_040": (512, 68, 16.8),
    "regnety_080": (512, 113, 28.1), "regnety_160": (512, 189, 45.6), "regnety_320": (256, 319, 76.0),
    "resnet50": (256, 53, 12.2), "resnet101": (256, 90, 20.4), "resnext50_32x4d": (256, 78, 18.0),
    "resnext101_32x4d": (256, 137, 31.8), "efficientnet_b0": (256, 34, 11.7), "efficientnet_b2": (256, 68, 18.4),
    "efficientnet_b4": (128, 240, 65.1),
}  # fmt: skip
#: By network: seconds of a training step, and GiB.
DETECTORS: Final[Mapping[str, tuple[float, float]]] = {
    "fasterrcnn": (0.2288, 5.2), "maskrcnn": (0.2728, 5.4), "keypointrcnn": (0.3789, 6.8),
}  # fmt: skip
#: The same of detectron2, by network and depth of the ResNet.
DETECTRON2: Final[Mapping[str, tuple[float, float]]] = {
    "fasterrcnn_50": (0.210, 3.0), "fasterrcnn_101": (0.286, 4.1), "retinanet_50": (0.200, 3.9),
    "retinanet_101": (0.280, 5.1),
}  # fmt: skip
#: By network: images per second, and GiB of training. `b`: one convolution of 7 x 7 first, where others have three.
FCN: Final[Mapping[str, tuple[float, float]]] = {
    "fcn_18": (14.65, 1.7), "fcn_50": (4.17, 5.7), "fcn_101": (2.66, 9.2), "fcn_18b": (16.74, 1.6),
    "fcn_50b": (4.20, 5.6), "fcn_101b": (2.73, 9.1),
}  # fmt: skip
#: Blocks of each stage, and whether these are bottlenecks.
DEPTHS: Final = {"18": ((2, 2, 2, 2), False), "50": ((3, 4, 6, 3), True), "101": ((3, 4, 23, 3), True)}


def _of_pycls(network: str, batch: int, inference_ms: float, hours: float) -> list[Published]:
    size = OF_EFFICIENT_NETS.get(network, 224)
    ms = 3.6e6 * hours * batch / (EPOCHS * IMAGES)
    return [
        Published(Program(network, INFERRED, size, size, "infer"), "pycls", 1, inference_ms),
        Published(Program(network, batch // RANKS, size, size, "train"), "pycls", RANKS, ms),
    ]


STEPS: Final = [
    *(step for network, figures in PYCLS.items() for step in _of_pycls(network, *figures)),
    *(
        step
        for source, usual, detectors in (("torchvision", USUAL, DETECTORS), ("detectron2", AVERAGE, DETECTRON2))
        for network, (seconds, gib) in detectors.items()
        for step in (
            Published(Program(network, 2, *usual, "train"), source, RANKS, 1e3 * seconds),
            Published(Program(network, 2, *LARGEST, "train"), source, RANKS, memory_gib=gib),
        )
    ),
    *(
        step
        for network, (rate, gib) in FCN.items()
        for step in (
            Published(Program(network, 1, *WHOLE, "infer"), "mmsegmentation", 1, 1e3 / rate),
            Published(Program(network, 2, *CROP, "train"), "mmsegmentation", 4, memory_gib=gib),
        )
    ),
]


def unit(inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """A convolution of the same size, a batch norm, and a ReLU."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False), nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )  # fmt: skip


class Block(nn.Module):
    """A block of a ResNet, dilated."""

    def __init__(self, inputs: int, width: int, stride: int, dilation: int, *, is_bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if is_bottleneck else width
        parts = (
            [*unit(inputs, width, 1), *unit(width, width, 3, stride, dilation), *unit(width, outputs, 1)]
            if is_bottleneck
            else [*unit(inputs, width, 3, stride, dilation), *unit(width, outputs, 3, 1, dilation)]
        )
        self.body = nn.Sequential(*parts[:-1])
        is_same = stride == 1 and inputs == outputs
        self.shortcut: nn.Module = nn.Identity() if is_same else unit(inputs, outputs, 1, stride)[:2]

    def forward(self, x: Tensor) -> Tensor:
        """Map images to images."""
        return torch.relu_(self.body(x) + self.shortcut(x))


class Fcn(nn.Module):
    """A ResNet whose last two stages are dilated, and two heads of convolutions on its last stages."""

    def __init__(self, depth: str) -> None:
        super().__init__()
        blocks, is_bottleneck = DEPTHS[depth.removesuffix("b")]
        stem = [unit(3, 64, 7, 2)] if depth.endswith("b") else [unit(3, 32, 3, 2), unit(32, 32, 3), unit(32, 64, 3)]
        self.stem = nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1))
        self.stages = nn.ModuleList()
        inputs = 64
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            dilation = (1, 1, 2, 4)[stage]
            layers: list[nn.Module] = []
            for number in range(count):
                stride = 2 if stage == 1 and number == 0 else 1
                # The first block of a dilated stage has the dilation of the stage before.
                first = number == 0 and stage > 1
                layers.append(
                    Block(inputs, width, stride, dilation // 2 if first else dilation, is_bottleneck=is_bottleneck)
                )
                inputs = 4 * width if is_bottleneck else width
            self.stages.append(nn.Sequential(*layers))
        inner = inputs // 4
        self.head = nn.Sequential(unit(inputs, inner, 3), unit(inner, inner, 3))
        self.joined = nn.Sequential(unit(inputs + inner, inner, 3), nn.Dropout2d(0.1), nn.Conv2d(inner, CLASSES, 1))
        self.other = nn.Sequential(
            unit(inputs // 2, inner // 2, 3), nn.Dropout2d(0.1), nn.Conv2d(inner // 2, CLASSES, 1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map images [N, 3, H, W] to scores [N, classes, H / 8, W / 8] of both heads, one in evaluation."""
        features = [self.stem(x)]
        for stage in self.stages:
            features.append(stage(features[-1]))
        last = features[-1]
        scores = self.joined(torch.cat((last, self.head(last)), 1))
        return scores, self.other(features[-2]) if self.training else scores


class Swish(nn.Module):
    """Swish as pycls has it written: two operators."""

    def __init__(self, inplace: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - as timm calls it
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """Map any shape to the same one."""
        return x * torch.sigmoid(x)


def detector(network: str, side: int) -> nn.Module:
    """A detector whose batch norms and first layers are frozen; it scales images to this short side."""
    from torchvision.models import detection, resnet50, resnet101
    from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor
    from torchvision.ops.feature_pyramid_network import LastLevelP6P7
    from torchvision.ops.misc import FrozenBatchNorm2d

    kind, _, depth = network.partition("_")
    resnet = (resnet101 if depth == "101" else resnet50)(weights=None, norm_layer=FrozenBatchNorm2d)
    if kind == "retinanet":
        more = LastLevelP6P7(2048, 256)
        return detection.RetinaNet(
            _resnet_fpn_extractor(resnet, 3, returned_layers=[2, 3, 4], extra_blocks=more),
            91,
            min_size=side,
            anchor_generator=detection.retinanet._default_anchorgen(),
        )
    backbone = _resnet_fpn_extractor(resnet, 3)
    if kind == "keypointrcnn":
        return detection.KeypointRCNN(backbone, 2, min_size=side)
    return (detection.MaskRCNN if kind == "maskrcnn" else detection.FasterRCNN)(backbone, 91, min_size=side)


def objects(program: Program) -> list[dict[str, Tensor]]:
    """Objects of each image: boxes, labels, masks and points; seven as on an average of COCO, four persons."""
    persons = program.network.startswith("keypointrcnn")
    found = []
    for _ in range(program.batch):
        count = 4 if persons else 7
        corners = 100 + 80 * torch.arange(count)[:, None].repeat(1, 2).float()
        target = {"boxes": torch.cat((corners, corners + 60), 1), "labels": torch.ones(count, dtype=torch.long)}
        if program.network.startswith("maskrcnn"):
            target["masks"] = torch.zeros(count, program.height, program.width, dtype=torch.uint8)
        if persons:
            target["keypoints"] = torch.cat((corners[:, None].repeat(1, 17, 1) + 30, torch.ones(count, 17, 1)), 2)
        found.append({key: value.cuda() for key, value in target.items()})
    return found


def model_of(program: Program) -> Any:
    """The model of a program."""
    if program.network in (*DETECTORS, *DETECTRON2):
        return detector(program.network, program.height)
    if program.network.startswith("fcn_"):
        return Fcn(program.network.partition("_")[2])
    import timm

    if program.network in OF_EFFICIENT_NETS:
        return timm.create_model(program.network, pretrained=False, act_layer=Swish)
    return timm.create_model(program.network, pretrained=False)


def step_of(program: Program) -> Callable[[], None]:
    """What is measured: ends with a sync."""
    model = model_of(program).cuda().train(program.trains)
    shape = (program.height, program.width)
    images: Any = torch.empty(program.batch, 3, *shape, device="cuda")
    if program.network in (*DETECTORS, *DETECTRON2):
        images = list(images)
    if not program.trains:
        return _inference(program, model, images)
    loss_of = _loss(program, images)
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-5, nesterov=True, foreach=False)

    def train() -> None:
        loss = loss_of(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    return train


def _inference(program: Program, model: Any, images: Any) -> Callable[[], None]:
    def infer() -> None:
        with torch.no_grad():
            found = model(images)
            if program.network.startswith("fcn_"):
                scores = nn.functional.interpolate(found[0], images.shape[2:], mode="bilinear", align_corners=False)
                scores.softmax(1).argmax(1).cpu()
        torch.cuda.synchronize()

    return infer


def _loss(program: Program, images: Any) -> Callable[[Any], Tensor]:
    if program.network in (*DETECTORS, *DETECTRON2):
        targets = objects(program)
        return lambda model: sum(model(images, targets).values())
    if program.network.startswith("fcn_"):
        labels = torch.randint(CLASSES, (program.batch, program.height, program.width), device="cuda")

        def of_both(model: Any) -> Tensor:
            losses = [
                nn.functional.cross_entropy(
                    nn.functional.interpolate(scores, labels.shape[1:], mode="bilinear", align_corners=False), labels
                )
                for scores in model(images)
            ]
            return losses[0] + 0.4 * losses[1]

        return of_both
    classes = torch.randint(1000, (program.batch,), device="cuda")
    return lambda model: nn.functional.cross_entropy(model(images), classes)


def follow(program: Program) -> dict[str, Any]:
    """Follow a program's fourth step, when the buckets of gradients no longer change: what the probe would say."""
    from steptrace.estimate.driver import driver_facts
    from steptrace.estimate.gpus import gpu_named
    from steptrace.predict import predict_syncs

    with predict_syncs(driver=driver_facts(gpu_named(GPU))) as syncs:
        if program.trains:
            dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        prediction = followed_programs.last_step(syncs, step_of(program), 4 if program.trains else 2)
        if dist.is_initialized():
            dist.destroy_process_group()
        return prediction


if __name__ == "__main__":
    followed_programs.main(__doc__, (step.program for step in STEPS), follow)
